// Worker: one rank's process as the agent sees it, with its output streams.
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/subprocess.h"
#include "lockstep/launch/console.h"
#include "lockstep/launch/first_lines.h"
#include "lockstep/launch/line_splitter.h"
#include "lockstep/launch/poll_set.h"

namespace lockstep::inline v0::launch {

// The last lines of a stream.
class Tail {
 public:
  void add(const Piece& piece);
  // Including an unfinished last line.
  std::vector<std::string> lines() const;

 private:
  std::deque<std::string> lines_;
  std::string unfinished_;
};

// The output that log files lack because they cannot be written (a full disk), for all ranks of
// this host.
struct LostOutput {
  uint64_t bytes = 0;
  int error = 0;               // errno of the first loss; 0: nothing is lost
  std::filesystem::path file;  // the file of the first loss
};

// The destinations of a rank's stream.
struct StreamPlan {
  Console* console = nullptr;  // nullptr: it is not shown
  Console* earlier = nullptr;  // flushed before `console` gets more, since both may be one file
  std::filesystem::path file;  // "": to no file
  LostOutput* lost = nullptr;  // for the file; outlives the stream
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

  // Makes a spare's stream, with the bytes waiting in its pipe, go where `plan` says from now on.
  void become(StreamPlan plan, int source);

  // The descriptor for the child; closed by started().
  int child_fd() const { return child_end_.get(); }
  void started() { child_end_.reset(); }

  // Makes `polls` call `ready` when there is input, unless the stream has ended or the console is
  // too far behind when the wait begins.
  void watch(PollSet& polls, std::function<void()> ready) const;
  bool has_input() const;
  // Reads the available bytes and passes them on.
  void pump(Time now);
  // Writes output that was kept for a moment, if it is time; returns when to call it again.
  std::optional<Time> on_time(Time now);
  // Reads all available bytes without waiting.
  void drain(Time now);
  // The same, and shows them at once, without holding the first lines back.
  void overtake(Time now);
  FirstLines& first_lines() { return first_lines_; }
  bool ended() const { return !read_end_; }
  // Reads the rest without waiting, and ends the stream.
  void finish();

  const Tail& tail() const { return tail_; }

 private:
  bool wanted() const;
  void write_to_file(std::string_view bytes);
  // Returns false at the end of the stream, or when there are no bytes now.
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
  // Starts the process. `options` without stdout_fd and stderr_fd.
  // Throws: LaunchError.
  Worker(SubprocessOptions options, StreamPlan out, StreamPlan err, int local_rank,
         UniqueFd error_file, std::filesystem::path error_path);

  // Makes a spare's process this rank. `error_path`: the file to which it writes its error from now
  // on; "": unchanged.
  // Throws: LaunchError.
  void become(StreamPlan out, StreamPlan err, int local_rank, std::filesystem::path error_path);

  Subprocess& process() { return process_; }
  OutputStream& out() { return out_; }
  OutputStream& err() { return err_; }
  // Reads from stdout, but first the rank's earlier output on stderr, so that a log of both is in
  // the order of writing.
  void pump_out(OutputStream::Time now);
  // The text in the rank's error file.
  std::string error_text() const;

 private:
  OutputStream out_;
  OutputStream err_;
  UniqueFd error_file_;
  std::filesystem::path error_path_;
  Subprocess process_;
};

}  // namespace lockstep::inline v0::launch
