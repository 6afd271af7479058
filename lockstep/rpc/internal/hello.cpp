#include "lockstep/rpc/internal/hello.h"

#include <sys/socket.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/core/net.h"

namespace lockstep::rpc::internal {
namespace {

using Json = nlohmann::json;

bool reads_memory_of(const Hello& self, const Hello& other) {
  return self.host_identity == other.host_identity && can_read_process(other.peer.pid, other.proof);
}

std::string frame_of(MessageKind kind, std::string_view body) {
  FrameHead head;
  head.kind = kind;
  head.body = static_cast<uint32_t>(body.size());
  std::string frame(reinterpret_cast<const char*>(&head), kHeadBytes);
  return frame.append(body);
}

FrameHead hello_head(const char* bytes) {
  const FrameHead head = read_head(bytes);
  if (head.kind != kHello || head.body > kMostHello || head.tensors > 0)
    throw BadFrame("it did not say who it is");
  return head;
}

// The library turns any number into any other, in or out of its range.
uint64_t whole(const Json& json, const char* key) {
  const Json& value = json.at(key);
  if (!value.is_number_unsigned()) throw BadFrame("it did not say who it is");
  return value.get<uint64_t>();
}

}  // namespace

std::string Hello::encode() const {
  return Json{{"name", peer.name},         {"incarnation", peer.incarnation},
              {"pid", peer.pid},           {"host", peer.host},
              {"identity", host_identity}, {"address", proof.address},
              {"word", proof.value},       {"reads", reads}}
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
    hello.proof.address = whole(json, "address");
    hello.proof.value = whole(json, "word");
    json.at("reads").get_to(hello.reads);
    return hello;
  } catch (const Json::exception&) {
    throw BadFrame("it did not say who it is");
  }
}

std::string hello_frame(const Hello& hello) {
  return frame_of(kHello, hello.encode());
}
std::string ready_frame(bool reads) {
  return frame_of(kReady, std::string(1, reads ? '\1' : '\0'));
}

void prove(int fd, const Secret& secret, Deadline deadline) {
  wire::authenticate_as_client(fd, secret, kPurpose, deadline);
}

Introduction introduce(int fd, const Hello& self, Deadline deadline) {
  const std::string mine = hello_frame(self);
  write_exact(fd, mine.data(), mine.size(), deadline);
  char head[kHeadBytes];
  read_exact(fd, head, sizeof head, deadline);
  std::string body(hello_head(head).body, '\0');
  read_exact(fd, body.data(), body.size(), deadline);
  Introduction introduction;
  introduction.other = Hello::decode(body);
  introduction.other_end_reads = introduction.other.reads;
  introduction.this_end_reads = reads_memory_of(self, introduction.other);
  return introduction;
}

Stranger::Stranger(UniqueFd fd, const Secret& secret, Hello self)
    : fd_(std::move(fd)), challenge_(secret, kPurpose), self_(std::move(self)) {}

// No byte beyond: what follows is the link's to read.
bool Stranger::read_up_to(size_t bytes) {
  while (buffer_.size() < bytes) {
    const size_t have = buffer_.size();
    buffer_.resize(bytes);
    const ssize_t n = ::recv(fd_.get(), buffer_.data() + have, bytes - have, MSG_DONTWAIT);
    buffer_.resize(have + (n > 0 ? static_cast<size_t>(n) : 0));
    if (n > 0 || (n < 0 && errno == EINTR)) continue;
    if (n < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return false;
    if (n == 0 || errno == ECONNRESET) throw PeerLost("it went away before it said who it is", -1);
    throw system_error("recv", errno);
  }
  return true;
}

// A few hundred bytes into an empty socket.
void Stranger::send(std::string_view bytes) const {
  const ssize_t n = ::send(fd_.get(), bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
  if (n != static_cast<ssize_t>(bytes.size()))
    throw PeerLost("it does not read what it asked for", -1);
}

bool Stranger::advance() {
  while (!challenge_.done()) {
    // Byte by byte, so to speak: the first wrong one is refused.
    const size_t wanted = challenge_.wanted();
    buffer_.clear();
    const bool all = read_up_to(wanted);
    if (!buffer_.empty()) {
      const std::string answer = challenge_.feed(buffer_);
      buffer_.clear();
      if (!answer.empty()) send(answer);
    }
    if (!all) return false;
  }
  if (!read_up_to(kHeadBytes)) return false;
  const FrameHead head = hello_head(buffer_.data());
  if (!read_up_to(kHeadBytes + head.body)) return false;
  introduction_.other = Hello::decode(std::string_view(buffer_).substr(kHeadBytes));
  introduction_.this_end_reads = reads_memory_of(self_, introduction_.other);
  self_.reads = introduction_.this_end_reads;
  send(hello_frame(self_));
  return true;
}

}  // namespace lockstep::rpc::internal
