#include "lockstep/cli/doctor/live_jobs.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <map>
#include <thread>
#include <utility>

#include "lockstep/cli/doctor/live.h"
#include "lockstep/cli/printable_lines.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/process_state.h"
#include "lockstep/core/text.h"
#include "lockstep/core/unique_fd.h"
#include "lockstep/report/terminal.h"

namespace lockstep::inline v0::cli {
namespace fs = std::filesystem;
namespace {

constexpr double kLooksBack = 10;  // seconds of the records that are examined

// A variable of another process; nullopt where it cannot be read.
std::optional<std::string> variable_of(int pid, const std::string& name) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/environ");
  for (std::string entry; std::getline(file, entry, '\0');)
    if (entry.starts_with(name + "=")) return entry.substr(name.size() + 1);
  return std::nullopt;
}

std::optional<int> number_of(int pid, const std::string& name) {
  const auto text = variable_of(pid, name);
  const auto number = text ? parse_int(*text, 0, INT32_MAX) : std::nullopt;
  return number ? std::optional(static_cast<int>(*number)) : std::nullopt;
}

// The host's ranks have consecutive numbers from this one on. A rank that was a spare at first
// shows a spare's environment, which has no rank.
int first_rank_of(const trace::CallBoard& board) {
  for (int local = 0; local < board.ranks(); ++local) {
    if (const auto rank = number_of(static_cast<int>(board.pid(local)), "RANK"))
      return *rank - local;
  }
  return 0;
}

// The board that a process holds, opened for reading.
std::optional<UniqueFd> board_of(const fs::path& process) {
  std::error_code error;
  for (fs::directory_iterator entry(process / "fd", error), end; !error && entry != end;
       entry.increment(error)) {
    std::error_code unread;
    if (!fs::read_symlink(entry->path(), unread).string().starts_with("/memfd:lockstep-board"))
      continue;
    UniqueFd fd(::open(entry->path().c_str(), O_RDONLY | O_CLOEXEC));
    if (fd) return fd;
  }
  return std::nullopt;
}

bool alive(int pid) {
  const char state = process_state(pid);
  return state != '\0' && state != 'Z' && state != 'X';
}

// The process that holds the board and is neither a rank nor a spare.
int launcher_of(const LiveJob& job) {
  for (const int pid : job.processes) {
    bool rank = variable_of(pid, "LOCKSTEP_SPARE_FD").has_value();
    for (int local = 0; local < job.board.ranks(); ++local)
      rank |= job.board.pid(local) == static_cast<uint32_t>(pid);
    if (!rank) return pid;
  }
  return job.processes.front();
}

bool contains(const std::vector<int>& list, int value) {
  return std::find(list.begin(), list.end(), value) != list.end();
}

}  // namespace

std::vector<LiveJob> find_live_jobs() {
  std::map<std::pair<dev_t, ino_t>, LiveJob> jobs;
  std::error_code error;
  for (fs::directory_iterator entry("/proc", error), end; !error && entry != end;
       entry.increment(error)) {
    const auto pid = parse_int(entry->path().filename().string(), 1, INT32_MAX);
    if (!pid) continue;
    auto fd = board_of(entry->path());
    struct stat info{};
    if (!fd || ::fstat(fd->get(), &info) != 0) continue;
    const std::pair key(info.st_dev, info.st_ino);
    auto found = jobs.find(key);
    if (found == jobs.end()) {
      auto board = trace::CallBoard::look(std::move(*fd));
      if (!board) continue;
      found = jobs.emplace(key, LiveJob{0, {}, std::move(*board)}).first;
    }
    found->second.processes.push_back(static_cast<int>(*pid));
  }
  std::vector<LiveJob> list;
  for (auto& [key, job] : jobs) {
    std::sort(job.processes.begin(), job.processes.end());
    job.launcher = launcher_of(job);
    list.push_back(std::move(job));
  }
  std::sort(list.begin(), list.end(),
            [](const LiveJob& a, const LiveJob& b) { return a.launcher < b.launcher; });
  return list;
}

LiveJob find_live_job(int pid) {
  std::vector<LiveJob> jobs = find_live_jobs();
  std::vector<int> launchers;
  for (LiveJob& job : jobs) {
    if (contains(job.processes, pid)) return std::move(job);
    launchers.push_back(job.launcher);
  }
  throw DataError("--live " + std::to_string(pid) + ": no job of Lockstep's has that process; " +
                  (launchers.empty() ? "none runs here that you may look at"
                                     : "give " + joined(launchers, " or ")));
}

std::vector<trace::TraceFile> read_live(const LiveJob& job) {
  std::vector<trace::TraceFile> ranks;
  const trace::BoardClock now = trace::read_clock();
  const int first = first_rank_of(job.board);
  for (int local = 0; local < job.board.ranks(); ++local) {
    const int pid = static_cast<int>(job.board.pid(local));
    if (pid == 0 || !alive(pid)) continue;
    ranks.push_back(trace::trace_of(job.board, local, first + local,
                                    number_of(pid, "WORLD_SIZE").value_or(job.board.ranks()), ""));
  }
  for (trace::TraceFile& rank : ranks) rank.now = now;
  return ranks;
}

int show_live(const LiveOptions& options) {
  std::vector<LiveJob> jobs;
  if (options.pid > 0)
    jobs.push_back(find_live_job(options.pid));
  else
    jobs = find_live_jobs();
  if (jobs.empty())
    throw DataError(
        "--live: no job of Lockstep's runs here that you may look at; start it with lockstep run");
  const bool redraw = options.times != 1 && ::isatty(STDOUT_FILENO) == 1 &&
                      find_terminal(STDOUT_FILENO, process_env()).interactive;
  bool late = false;
  for (int look = 0; options.times == 0 || look < options.times; ++look) {
    if (look > 0) std::this_thread::sleep_for(std::chrono::duration<double>(options.every));
    std::string text;
    bool any = false, late_now = false;
    for (const LiveJob& job : jobs) {
      const LiveReport report = look_live(read_live(job), kLooksBack);
      any |= alive(job.launcher) || !report.rows.empty();
      late_now |= report.straggler.has_value();
      text += "job of pid " + std::to_string(job.launcher) + ": ";
      text += report.rows.empty() ? "no rank has joined\n" : format_live(report);
    }
    if (!any) break;
    late = late_now;
    text = printable_lines(text);
    // Moves the cursor home, writes the text, and erases the rest of a longer former one.
    write_stdout(redraw ? "\x1b[H\x1b[2J" + text : text + "\n");
  }
  return late ? 1 : 0;
}

}  // namespace lockstep::inline v0::cli
