// Worker: one rank's process as the agent sees it, with its output streams.
#pragma once

#include <chrono>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/core/subprocess.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/first_lines.h"
#include "lockstep/launch/line_splitter.h"
#include "lockstep/launch/poll_set.h"

namespace lockstep::launch {

// The last lines of a stream.
class Tail {
 public:
  void add(const Piece& piece);
  // The lines at the end of a file, read now.
  void add_file(const std::filesystem::path& path);
  // Including one that the stream left unfinished.
  std::vector<std::string> lines() const;

 private:
  std::deque<std::string> lines_;
  std::string unfinished_;
};

// Where a stream of a rank goes.
struct StreamPlan {
  Console* console = nullptr;  // nullptr: it is not shown
  Console* earlier = nullptr;  // flushed before `console` gets more, for both may be one file
  std::filesystem::path file;  // "": to no file
  bool file_only = false;      // the rank writes into the file itself
  std::string prefix;
  bool show_unfinished = false;  // put an unfinished line onto a terminal after a moment
  int hold_first_lines = 0;      // FirstLines
};

// A stream of a rank, from its pipe to the console, the file and the tail.
class OutputStream {
 public:
  using Time = std::chrono::steady_clock::time_point;

  // `source` is the stream's number on the console.
  OutputStream(StreamPlan plan, int source);

  // A spare's, which from now on goes where `plan` says, with what waits in its pipe. There the file is written from
  // the pipe, whatever file_only says.
  void become(StreamPlan plan, int source);

  // The descriptor for the child; closed by started().
  int child_fd() const;
  void started() { child_end_.reset(); }

  // Has `polls` call `ready` when there is input, unless the stream has ended or the console is too
  // far behind when the wait begins.
  void watch(PollSet& polls, std::function<void()> ready) const;
  bool has_input() const;
  // Reads what is there and passes it on.
  void pump(Time now);
  // Puts out what was kept for a moment, if it is time; returns when to be called again.
  std::optional<Time> on_time(Time now);
  // Reads all that is there without waiting.
  void drain(Time now);
  // The same, and shows it at once, without holding the first lines back.
  void overtake(Time now);
  FirstLines& first_lines() { return first_lines_; }
  bool ended() const { return !read_end_; }
  // Reads the rest without waiting, and ends the stream.
  void finish();

  Tail tail() const;

 private:
  bool wanted() const;
  // False at the end of the stream, or when nothing is there now.
  bool read_some(Time now);
  void pass_on(const std::vector<Piece>& pieces, Time now);
  void show(const std::vector<Piece>& pieces);

  StreamPlan plan_;
  int source_;
  UniqueFd read_end_;
  UniqueFd child_end_;
  UniqueFd file_;
  LineSplitter splitter_;
  FirstLines first_lines_;
  Tail tail_;
  Time last_input_{};
};

// A rank's process, or a spare's.
class Worker {
 public:
  // Starts the process. `options` without stdout_fd and stderr_fd. Throws LaunchError.
  Worker(SubprocessOptions options, StreamPlan out, StreamPlan err, int local_rank,
         UniqueFd error_file, std::filesystem::path error_path);

  // A spare's, which has become this rank. `error_path`: where it writes its error from now on; "": where it did.
  // Throws LaunchError.
  void become(StreamPlan out, StreamPlan err, int local_rank, std::filesystem::path error_path);

  Subprocess& process() { return process_; }
  OutputStream& out() { return out_; }
  OutputStream& err() { return err_; }
  // Reads from stdout; but first what the rank has written to stderr before that, so that a log of
  // both reads as it was written.
  void pump_out(OutputStream::Time now);
  // What the rank left in its error file.
  std::string error_text() const;

 private:
  OutputStream out_;
  OutputStream err_;
  UniqueFd error_file_;
  std::filesystem::path error_path_;
  Subprocess process_;
};

}  // namespace lockstep::launch
