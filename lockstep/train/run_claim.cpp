#include "lockstep/train/run_claim.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>
#include <sstream>
#include <string>
#include <thread>

#include "lockstep/checkpoint/checkpoint_series.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/file_lock.h"
#include "lockstep/core/process_state.h"
#include "lockstep/core/utf8.h"
#include "lockstep/train/run_folder.h"

namespace lockstep::inline v0 {
namespace fs = std::filesystem;
namespace {

// Seconds. An agent that is stopped ends its ranks within 16; a server of files lets go of what a
// host held that is gone within 90 (NFSv4).
constexpr double kPatience = 30, kPatienceElsewhere = 120;
constexpr auto kPause = std::chrono::milliseconds(50);
constexpr size_t kLongest = 4096;

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

// What processes have in common that see each other under the same ids: this start of this host,
// and a namespace.
std::string process_space() {
  std::string boot;
  std::getline(std::ifstream("/proc/sys/kernel/random/boot_id"), boot);
  std::error_code error;
  const fs::path space = fs::read_symlink("/proc/self/ns/pid", error);
  return boot.empty() || error ? "" : boot + " " + space.string();
}

// When the process began, as the kernel counts; "" of one that is not there, or dead.
std::string start_of(int64_t pid) {
  std::string text;
  std::getline(std::ifstream("/proc/" + std::to_string(pid) + "/stat"), text);
  const auto close = text.rfind(')');  // "pid (name) state ...": the name may hold anything
  if (close == std::string::npos) return "";
  constexpr int kStart = 20;  // words behind the name, from the state on
  std::istringstream words(text.substr(close + 1));
  std::string word;
  for (int i = 0; i < kStart && words >> word; ++i)
    if (i == 0 && (word == "Z" || word == "X")) return "";
  return words ? word : "";
}

// Who has the file, as far as it says so.
struct Holder {
  std::string text = "another process";
  std::string job, launcher;  // job_id(), launcher_job_id()
  bool elsewhere = false;     // on another host
  bool here = false;          // a process that lives, and whose state can be seen
  bool gone = false;          // one that could be seen, and does not live
  int pid = 0;

  bool stands_still() const {
    const char state = here ? process_state(pid) : '\0';
    return state == 'T' || state == 't';
  }
};

Holder holder_of(int fd) {
  std::string text(kLongest, '\0');
  const ssize_t read = ::pread(fd, text.data(), text.size(), 0);
  text.resize(read > 0 ? static_cast<size_t>(read) : 0);
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  Holder holder;
  try {
    const auto host = json.at("host").get<std::string>();
    const auto pid = json.at("pid").get<int64_t>();
    holder.elsewhere = host != host_name();
    holder.text = "process " + std::to_string(pid) +
                  (holder.elsewhere ? " on host " + printable(host, 80) : "");
    holder.job = json.at("job").get<std::string>();
    holder.launcher = json.value("launcher", "");
    const auto space = json.at("space").get<std::string>(),
               start = json.at("start").get<std::string>();
    if (space.empty() || start.empty() || space != process_space()) return holder;
    holder.here = start == start_of(pid);
    holder.gone = !holder.here;
    holder.pid = static_cast<int>(pid);
  } catch (const nlohmann::json::exception&) {  // about to be written
  }
  return holder;
}

// Whether `path` names the open file; nothing where the file system does not say.
std::optional<bool> named(int fd, const fs::path& path) {
  struct stat opened{}, there{};
  if (::fstat(fd, &opened) != 0) return std::nullopt;
  if (::stat(path.c_str(), &there) != 0)
    return errno == ENOENT ? std::optional(false) : std::nullopt;
  return opened.st_dev == there.st_dev && opened.st_ino == there.st_ino;
}

bool is_named(int fd, const fs::path& path) {
  return named(fd, path).value_or(false);
}

// The lock file, and whether this call has made it.
UniqueFd open_file(const fs::path& file, bool* made) {
  UniqueFd fd(::open(file.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666));
  *made = static_cast<bool>(fd);
  if (!fd && errno == EEXIST) fd.reset(::open(file.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
  // Another user's; most file systems give its lock all the same.
  if (!fd && errno == EACCES) fd.reset(::open(file.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd) throw system_error("cannot write " + file.string(), errno);
  return fd;
}

}  // namespace

WriterClaim::WriterClaim(const fs::path& file, const std::string& what, const EnvLookup& env)
    : file_(file), what_(what) {
  const std::string job = job_id(env), launcher = launcher_job_id(env);
  const Deadline here = Deadline::seconds(kPatience),
                 elsewhere = Deadline::seconds(kPatienceElsewhere);
  while (true) {
    bool made = false;
    fd_ = open_file(file_, &made);
    const FileLock lock = try_lock(fd_.get());
    if (lock == FileLock::kHeld) {
      if (!is_named(fd_.get(), file_)) continue;  // who had it has just removed it
      held_ = own_ = true;
      say_who(job, launcher);
      return;
    }
    const Holder holder = holder_of(fd_.get());
    if (lock == FileLock::kNone && !holder.here) {
      // What another host's process has written stays: it may live.
      own_ = made || holder.gone;
      if (own_) say_who(job, launcher);
      return;
    }
    const bool same_job = !job.empty() && holder.job == job;
    // One that stands still can neither let go nor write. A launcher has given it up; when it goes
    // on it finds that the others have left it, and check() that the folder is no longer its own.
    const bool still = holder.stands_still(),
               left = still && !launcher.empty() && holder.launcher == launcher;
    if (left && is_named(fd_.get(), file_) && ::unlink(file_.c_str()) == 0) continue;
    if (!same_job || (still && !left) || (holder.elsewhere ? elsewhere : here).expired())
      throw InvalidArgument(
          what + " is in use: " + holder.text +
          (still ? " has it and stands still; let it go on or end it"
                 : " is at work there; wait for its end") +
          ", or give another output" +
          (holder.elsewhere ? "; where that host is gone and its lock has stayed, as on NFSv3, "
                              "remove " +
                                  file_.string()
                            : ""));
    std::this_thread::sleep_for(kPause);
  }
}

// It helps to word a refusal, and to notice each other where there are no locks.
void WriterClaim::say_who(const std::string& job, const std::string& launcher) {
  const std::string text = nlohmann::json{{"pid", ::getpid()},
                                          {"host", host_name()},
                                          {"space", process_space()},
                                          {"start", start_of(::getpid())},
                                          {"job", job},
                                          {"launcher", launcher}}
                               .dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) +
                           "\n";
  if (::ftruncate(fd_.get(), 0) != 0 || ::pwrite(fd_.get(), text.data(), text.size(), 0) < 0)
    return;
}

void WriterClaim::check() const {
  if (!own_ || named(fd_.get(), file_).value_or(true)) return;
  throw CheckpointError(what_ + " is no longer this process's: " + file_.string() +
                        " is another's or gone, as where another process of the job went on while "
                        "this one stood still; nothing more is written there");
}

WriterClaim::~WriterClaim() {
  // Before the lock goes: a process that waits for it looks whether the file still has its name.
  if (own_ && is_named(fd_.get(), file_)) ::unlink(file_.c_str());
}

RunClaim::RunClaim(const fs::path& folder, const EnvLookup& env)
    : output_(folder), claim_(folder / ".lock", "output " + folder.string(), env) {
  try {
    if (claim_.is_held()) remove_trials(folder);
    try_series(folder);
  } catch (const SystemError& error) {
    throw InvalidArgument("output " + folder.string() + " cannot keep checkpoints (" +
                          error.what() + "); give another directory");
  }
}

}  // namespace lockstep::inline v0
