#include "lockstep/train/run_claim.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>

#include "lockstep/checkpoint/checkpoint_series.h"
#include "lockstep/core/deadline.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/file_lock.h"
#include "lockstep/core/utf8.h"
#include "lockstep/train/run_folder.h"

namespace lockstep {
namespace fs = std::filesystem;
namespace {

// Seconds. An agent that is stopped ends its ranks within 16; a server of files lets go of what a host held that is
// gone within 90 (NFSv4).
constexpr double kPatience = 30, kPatienceElsewhere = 120;
constexpr auto kPause = std::chrono::milliseconds(50);
constexpr size_t kLongest = 4096;

std::string host_name() {
  std::array<char, 256> name{};
  return ::gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "";
}

// Who has the file, as far as it says so.
struct Holder {
  std::string text = "another process";
  std::string job;
  bool elsewhere = false;  // on another host
};

Holder holder_of(int fd) {
  std::string text(kLongest, '\0');
  const ssize_t read = ::pread(fd, text.data(), text.size(), 0);
  text.resize(read > 0 ? static_cast<size_t>(read) : 0);
  const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  Holder holder;
  try {
    const auto host = json.at("host").get<std::string>();
    holder.elsewhere = host != host_name();
    holder.text = "process " + std::to_string(json.at("pid").get<int64_t>()) +
                  (holder.elsewhere ? " on host " + printable(host, 80) : "");
    holder.job = json.at("job").get<std::string>();
  } catch (const nlohmann::json::exception&) {  // about to be written
  }
  return holder;
}

bool is_named(int fd, const fs::path& path) {
  struct stat opened{}, named{};
  return ::fstat(fd, &opened) == 0 && ::stat(path.c_str(), &named) == 0 &&
         opened.st_dev == named.st_dev && opened.st_ino == named.st_ino;
}

}  // namespace

RunClaim::RunClaim(const fs::path& folder, const EnvLookup& env)
    : output_(folder), file_(folder / ".lock") {
  take(folder, env);
  try {
    try_series(folder);
  } catch (const SystemError& error) {
    ::unlink(file_.c_str());
    throw InvalidArgument("output " + folder.string() + " cannot keep checkpoints (" +
                          error.what() + "); give another directory");
  }
}

void RunClaim::take(const fs::path& folder, const EnvLookup& env) {
  const std::string job = job_id(env);
  const Deadline here = Deadline::seconds(kPatience),
                 elsewhere = Deadline::seconds(kPatienceElsewhere);
  while (true) {
    fd_.reset(::open(file_.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666));
    // Another user's; most file systems give its lock all the same.
    if (!fd_ && errno == EACCES) fd_.reset(::open(file_.c_str(), O_RDONLY | O_CLOEXEC));
    if (!fd_) throw system_error("cannot write " + file_.string(), errno);
    const FileLock lock = try_lock(fd_.get());
    if (lock == FileLock::kNone) return;
    if (lock == FileLock::kHeld) {
      if (is_named(fd_.get(), file_)) break;
      continue;  // who had it has just removed it
    }
    const Holder holder = holder_of(fd_.get());
    if (job.empty() || holder.job != job || (holder.elsewhere ? elsewhere : here).expired())
      throw InvalidArgument("output " + folder.string() + " is in use: " + holder.text +
                            " is training there; wait for its end, or give another output");
    std::this_thread::sleep_for(kPause);
  }
  held_ = true;
  const std::string text =
      nlohmann::json{{"pid", ::getpid()}, {"host", host_name()}, {"job", job}}.dump(
          -1, ' ', false, nlohmann::json::error_handler_t::replace) +
      "\n";
  // It only helps to word a refusal.
  if (::ftruncate(fd_.get(), 0) != 0 || ::pwrite(fd_.get(), text.data(), text.size(), 0) < 0)
    return;
}

RunClaim::~RunClaim() {
  // Before the lock goes: whoever waits for it looks whether the file still has its name.
  ::unlink(file_.c_str());
}

}  // namespace lockstep
