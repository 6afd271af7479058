#include "lockstep/rpc/internal/hello.h"

#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/net.h"
#include "lockstep/wire/challenge.h"

namespace lockstep::inline v0::rpc::internal {
namespace {

using Json = nlohmann::json;

constexpr size_t kMostName = 200;

bool printable(std::string_view text) {
  return std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
}

std::string frame_of(MessageKind kind, std::string_view body) {
  FrameHead head;
  head.kind = kind;
  head.body = static_cast<uint32_t>(body.size());
  std::string frame(reinterpret_cast<const char*>(&head), kHeadBytes);
  return frame.append(body);
}

FrameHead head_of(const char* bytes, MessageKind kind, size_t most) {
  const FrameHead head = read_head(bytes);
  if (head.kind != kind || head.body > most || head.table > 0 || head.tensors > 0)
    throw BadFrame("it did not say who it is");
  return head;
}

constexpr size_t kReadyBytes = 1 + sizeof(uint64_t);

Ready ready_of(std::string_view body) {
  Ready ready;
  if (body.size() != kReadyBytes || static_cast<uint8_t>(body[0]) > 1)
    throw BadFrame("it did not say whether it reads memory");
  ready.reads = body[0] == '\1';
  std::memcpy(&ready.address, body.data() + 1, sizeof ready.address);
  return ready;
}

// Stores the other end's word at a stable address, if it can be read from there at all. Returns the
// address, or 0.
uint64_t show_word(Introduction& introduction) {
  if (introduction.process.pid == 0) return 0;
  introduction.shown = std::make_unique<uint64_t>(introduction.other.word);
  return reinterpret_cast<uint64_t>(introduction.shown.get());
}

// Checks whether that process has stored `word` there.
void look_for_word(Introduction& introduction, uint64_t word, uint64_t address) {
  introduction.proof = {address, word};
  introduction.this_end_reads = introduction.process.pid > 0 && address != 0 &&
                                can_read_process(introduction.process.pid, introduction.proof) &&
                                !has_ended(introduction.process);
  if (!introduction.this_end_reads) introduction.process.process.reset();
}

// The library converts any number to any other, without checking the range.
uint64_t whole(const Json& json, const char* key) {
  const Json& value = json.at(key);
  if (!value.is_number_unsigned()) throw BadFrame("it did not say who it is");
  return value.get<uint64_t>();
}

}  // namespace

void check_name(const std::string& name) {
  if (name.empty() || name.size() > kMostName || !printable(name))
    throw InvalidArgument("rpc: a process's name has 1 to 200 printable ASCII characters; '" +
                          name.substr(0, kMostName) + "' has not");
}

std::string Hello::encode() const {
  return Json{{"name", peer.name}, {"incarnation", peer.incarnation}, {"pid", peer.pid},
              {"host", peer.host}, {"identity", host_identity},       {"word", word},
              {"address", address}}
      .dump();
}

Hello Hello::decode(std::string_view body) {
  try {
    const Json json = Json::parse(body);
    Hello hello;
    json.at("name").get_to(hello.peer.name);
    hello.peer.incarnation = whole(json, "incarnation");
    hello.peer.pid = static_cast<int64_t>(whole(json, "pid"));
    json.at("host").get_to(hello.peer.host);
    json.at("identity").get_to(hello.host_identity);
    hello.word = whole(json, "word");
    hello.address = whole(json, "address");
    // They are displayed, also on terminals.
    if (hello.peer.name.empty() || hello.peer.name.size() > kMostName ||
        !printable(hello.peer.name) || !printable(hello.peer.host))
      throw BadFrame("what it says of itself cannot be shown");
    return hello;
  } catch (const Json::exception&) {
    throw BadFrame("it did not say who it is");
  }
}

std::string hello_frame(const Hello& hello) {
  return frame_of(kHello, hello.encode());
}
std::string ready_frame(const Ready& ready) {
  std::string body(kReadyBytes, ready.reads ? '\1' : '\0');
  std::memcpy(body.data() + 1, &ready.address, sizeof ready.address);
  return frame_of(kReady, body);
}

void prove(int fd, const Secret& secret, Deadline deadline) {
  wire::authenticate_as_client(fd, secret, kPurpose, deadline);
}

namespace {

void write_frame(int fd, const std::string& frame, Deadline deadline) {
  write_exact(fd, frame.data(), frame.size(), deadline);
}

std::string read_body(int fd, MessageKind kind, size_t most, Deadline deadline) {
  char head[kHeadBytes];
  read_exact(fd, head, sizeof head, deadline);
  std::string body(head_of(head, kind, most).body, '\0');
  read_exact(fd, body.data(), body.size(), deadline);
  return body;
}

}  // namespace

Introduction introduce(int fd, Hello self, Deadline deadline) {
  self.word = random_word();
  write_frame(fd, hello_frame(self), deadline);
  Introduction introduction;
  introduction.process = other_process(fd);
  introduction.other = Hello::decode(read_body(fd, kHello, kMostHello, deadline));
  look_for_word(introduction, self.word, introduction.other.address);
  const uint64_t address = show_word(introduction);
  write_frame(fd, ready_frame({introduction.this_end_reads, address}), deadline);
  introduction.other_end_reads =
      ready_of(read_body(fd, kReady, kReadyBytes, deadline)).reads && address != 0;
  return introduction;
}

Newcomer::Newcomer(int fd, Hello self) : fd_(fd), self_(std::move(self)) {
  self_.word = random_word();
}

// Reads not one byte more, since the link reads what follows.
bool Newcomer::read_up_to(size_t bytes) {
  while (buffer_.size() < bytes) {
    const size_t have = buffer_.size();
    buffer_.resize(bytes);
    const ssize_t n = ::recv(fd_, buffer_.data() + have, bytes - have, MSG_DONTWAIT);
    buffer_.resize(have + (n > 0 ? static_cast<size_t>(n) : 0));
    if (n > 0 || (n < 0 && errno == EINTR)) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (n == 0 || errno == ECONNRESET) throw PeerLost("it went away before it said who it is", -1);
    throw system_error("recv", errno);
  }
  return true;
}

// This fits: it is a few hundred bytes into an empty socket buffer.
void Newcomer::send(std::string_view bytes) const {
  const ssize_t n = ::send(fd_, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n != static_cast<ssize_t>(bytes.size()))
    throw PeerLost("it does not read what it asked for", -1);
}

bool Newcomer::advance() {
  if (!met_) {
    if (!read_frame(kHello, kMostHello)) return false;
    introduction_.other = Hello::decode(std::string_view(buffer_).substr(kHeadBytes));
    buffer_.clear();
    introduction_.process = other_process(fd_);
    self_.address = show_word(introduction_);
    send(hello_frame(self_));
    met_ = true;
  }
  if (!read_frame(kReady, kReadyBytes)) return false;
  const Ready ready = ready_of(std::string_view(buffer_).substr(kHeadBytes));
  introduction_.other_end_reads = ready.reads && self_.address != 0;
  look_for_word(introduction_, self_.word, ready.address);
  return true;
}

// Returns false if it has not arrived completely.
bool Newcomer::read_frame(MessageKind kind, size_t most) {
  return read_up_to(kHeadBytes) &&
         read_up_to(kHeadBytes + head_of(buffer_.data(), kind, most).body);
}

}  // namespace lockstep::inline v0::rpc::internal
