#include "lockstep/launch/worker.h"

#include <fcntl.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/launch/log_folder.h"

namespace lockstep::inline v0::launch {
namespace {

constexpr size_t kTailLines = 20;
constexpr size_t kTailLineLength = 500;
constexpr size_t kConsoleBacklog = size_t{1} << 20;
constexpr auto kUnfinishedPause = std::chrono::milliseconds(100);
constexpr size_t kErrorFileBytes = size_t{1} << 20;

std::string read_from(int fd, off_t offset, size_t limit) {
  std::string text(limit, '\0');
  const ssize_t n = ::pread(fd, text.data(), text.size(), offset);
  text.resize(n > 0 ? static_cast<size_t>(n) : 0);
  return text;
}

}  // namespace

void Tail::add(const Piece& piece) {
  if (piece.end == Piece::End::kProgress) return;
  unfinished_ += piece.text.substr(0, kTailLineLength);
  if (piece.end == Piece::End::kForced) return;
  while (!unfinished_.empty() && (unfinished_.back() == '\n' || unfinished_.back() == '\r'))
    unfinished_.pop_back();
  if (unfinished_.size() > kTailLineLength)
    unfinished_ = unfinished_.substr(0, kTailLineLength) + "...";
  lines_.push_back(std::exchange(unfinished_, {}));
  if (lines_.size() > kTailLines) lines_.pop_front();
}

std::vector<std::string> Tail::lines() const {
  std::vector<std::string> lines(lines_.begin(), lines_.end());
  if (!unfinished_.empty()) lines.push_back(unfinished_);
  return lines;
}

OutputStream::OutputStream(StreamPlan plan, int source)
    : plan_(std::move(plan)), source_(source), first_lines_(plan_.hold_first_lines) {
  if (!plan_.file.empty()) file_ = open_log(plan_.file);
  Pipe pipe = make_pipe();
  // Only this end is non-blocking; the rank's end stays blocking.
  ::fcntl(pipe.read.get(), F_SETFL, O_NONBLOCK);
  read_end_ = std::move(pipe.read);
  child_end_ = std::move(pipe.write);
}

void OutputStream::become(StreamPlan plan, int source) {
  plan_ = std::move(plan);
  source_ = source;
  first_lines_ = FirstLines(plan_.hold_first_lines);
  if (!plan_.file.empty()) file_ = open_log(plan_.file);
}

bool OutputStream::wanted() const {
  return read_end_ && (plan_.console == nullptr || plan_.console->backlog() <= kConsoleBacklog);
}

void OutputStream::watch(PollSet& polls, std::function<void()> ready) const {
  polls.add([this] { return wanted() ? read_end_.get() : -1; }, POLLIN, std::move(ready));
}

bool OutputStream::has_input() const {
  int bytes = 0;
  return read_end_ && ::ioctl(read_end_.get(), FIONREAD, &bytes) == 0 && bytes > 0;
}

void OutputStream::pump(Time now) {
  read_some(now);
}

bool OutputStream::read_some(Time now) {
  if (!read_end_) return false;
  char buffer[65536];
  const ssize_t n = ::read(read_end_.get(), buffer, sizeof buffer);
  if (n < 0) return errno == EINTR;
  if (n == 0) {
    pass_on(splitter_.flush(), now);
    read_end_.reset();
    return false;
  }
  const std::string_view bytes(buffer, static_cast<size_t>(n));
  if (file_) write_to_file(bytes);
  pass_on(splitter_.feed(bytes), now);
  last_input_ = now;
  return true;
}

// Continues after a loss, because there may be space again later.
void OutputStream::write_to_file(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = ::write(file_.get(), bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      LostOutput& lost = *plan_.lost;
      if (lost.error == 0) {
        lost.error = errno;
        lost.file = plan_.file;
      }
      lost.bytes += bytes.size();
      return;
    }
    bytes.remove_prefix(static_cast<size_t>(n));
  }
}

void OutputStream::pass_on(const std::vector<Piece>& pieces, Time now) {
  for (const Piece& piece : pieces) tail_.add(piece);
  show(first_lines_.pass(pieces, now));
}

void OutputStream::show(const std::vector<Piece>& pieces) {
  if (plan_.console == nullptr || pieces.empty()) return;
  if (plan_.earlier != nullptr) plan_.earlier->flush();
  for (const Piece& piece : pieces) plan_.console->put(source_, piece, plan_.prefix);
}

std::optional<OutputStream::Time> OutputStream::on_time(Time now) {
  show(first_lines_.on_time(now));
  std::optional<Time> next = first_lines_.next_time();
  if (plan_.show_unfinished && splitter_.pending()) {
    const Time flush_at = last_input_ + kUnfinishedPause;
    if (now >= flush_at) {
      pass_on(splitter_.flush(), now);
    } else {
      next = next ? std::min(*next, flush_at) : flush_at;
    }
  }
  return next;
}

// A process that left the rank's process group may hold the pipe and keep writing, so reading is
// bounded.
void OutputStream::drain(Time now) {
  for (int rounds = 0; rounds < 64 && read_some(now); ++rounds) {
  }
}

void OutputStream::overtake(Time now) {
  if (wanted()) drain(now);
  show(first_lines_.release());
}

void OutputStream::finish() {
  drain(last_input_);
  pass_on(splitter_.flush(), last_input_);
  show(first_lines_.release());
  read_end_.reset();
}

namespace {

Subprocess start(SubprocessOptions options, OutputStream& out, OutputStream& err, int error_file) {
  options.stdout_fd = out.child_fd();
  options.stderr_fd = err.child_fd();
  if (error_file >= 0) options.inherit.push_back(error_file);
  Subprocess process(options);
  out.started();
  err.started();
  return process;
}

}  // namespace

Worker::Worker(SubprocessOptions options, StreamPlan out, StreamPlan err, int local_rank,
               UniqueFd error_file, std::filesystem::path error_path)
    : out_(std::move(out), 2 * local_rank),
      err_(std::move(err), 2 * local_rank + 1),
      error_file_(std::move(error_file)),
      error_path_(std::move(error_path)),
      process_(start(std::move(options), out_, err_, error_file_.get())) {}

void Worker::become(StreamPlan out, StreamPlan err, int local_rank,
                    std::filesystem::path error_path) {
  out_.become(std::move(out), 2 * local_rank);
  err_.become(std::move(err), 2 * local_rank + 1);
  if (error_path.empty()) return;
  error_file_.reset();
  error_path_ = std::move(error_path);
}

void Worker::pump_out(OutputStream::Time now) {
  // Not at the end of stdout, which the rank's end causes.
  if (out_.has_input()) err_.overtake(now);
  out_.pump(now);
}

std::string Worker::error_text() const {
  if (error_file_) return read_from(error_file_.get(), 0, kErrorFileBytes);
  const UniqueFd file(::open(error_path_.c_str(), O_RDONLY | O_CLOEXEC));
  return file ? read_from(file.get(), 0, kErrorFileBytes) : "";
}

}  // namespace lockstep::inline v0::launch
