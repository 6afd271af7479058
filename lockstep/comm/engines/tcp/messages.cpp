#include "lockstep/comm/engines/tcp/messages.h"

#include <algorithm>
#include <cstring>

#include "lockstep/comm/engines/tcp/exchange.h"

namespace lockstep::inline v0::tcp {
namespace {

constexpr int64_t kPartBytes = 256 * 1024;

FrameHeader message_header(FrameType type, const Message& message, uint64_t number) {
  FrameHeader header;
  header.type = type;
  header.kind = static_cast<uint8_t>(message.call.dtype);
  header.tag = message.call.tag;
  header.key = number;
  header.amount = static_cast<uint64_t>(message.call.count);
  return header;
}

}  // namespace

Messages::Messages(int rank, int size, std::function<Link*(int)> link,
                   std::function<void(const std::string&)> report)
    : rank_(rank),
      link_(std::move(link)),
      report_(std::move(report)),
      peers_(static_cast<size_t>(size)) {}

std::shared_ptr<Message> Messages::post(const Call& call) {
  auto message = std::make_shared<Message>(call);
  Peer& peer = peers_[call.peer];
  if (call.op == Op::kRecv) {
    peer.waiting.push_back(message);
    take_parked(call.peer);
  } else if (call.peer == rank_) {
    send_to_self(message);
  } else if (message->bytes <= kEagerBytes) {
    link_(call.peer)->push(message_header(FrameType::kMessage, *message, peer.sent++),
                           describe(call), call.input, static_cast<size_t>(message->bytes), message,
                           1);
  } else {
    const uint64_t number = peer.sent++;
    peer.asking.emplace(number, message);
    link_(call.peer)->push(message_header(FrameType::kAsk, *message, number), describe(call));
  }
  return message;
}

void Messages::send_to_self(const std::shared_ptr<Message>& message) {
  auto parked = std::make_shared<Parked>();
  parked->header = message_header(FrameType::kMessage, *message, 0);
  parked->text = describe(message->call);
  parked->complete = true;
  if (message->bytes <= kEagerBytes) {
    const auto bytes = static_cast<size_t>(message->bytes);
    parked->header.bytes = bytes;
    parked->payload = std::make_unique<std::byte[]>(bytes);
    if (bytes > 0) std::memcpy(parked->payload.get(), message->call.input, bytes);
    message->done = true;
  } else {
    parked->self = message;
  }
  peers_[rank_].parked_bytes += parked->header.bytes;
  peers_[rank_].parked.push_back(std::move(parked));
  take_parked(rank_);
}

bool Messages::fits(const FrameHeader& header, std::string_view text, const Message& receive,
                    int src) {
  if (header.amount == static_cast<uint64_t>(receive.call.count) &&
      header.kind == static_cast<uint8_t>(receive.call.dtype))
    return true;
  report_("a message does not fit its receive: rank " + std::to_string(src) + " called " +
          std::string(text) + ", rank " + std::to_string(rank_) + " called " +
          describe(receive.call) + "; dtype and number of elements must agree");
  return false;
}

std::shared_ptr<Message> Messages::take_waiting(Peer& peer, int tag) {
  const auto it = std::find_if(peer.waiting.begin(), peer.waiting.end(),
                               [tag](const auto& m) { return m->call.tag == tag; });
  if (it == peer.waiting.end()) return nullptr;
  auto found = *it;
  peer.waiting.erase(it);
  return found;
}

// Gives arrived messages to matching receives. Among equal tags the first posted gets the first
// sent, which may still be arriving.
void Messages::take_parked(int src) {
  Peer& peer = peers_[src];
  for (auto it = peer.parked.begin(); it != peer.parked.end() && !peer.waiting.empty();) {
    Parked& parked = **it;
    const auto wanted = [&](const auto& m) { return m->call.tag == parked.header.tag; };
    const auto found = std::find_if(peer.waiting.begin(), peer.waiting.end(), wanted);
    if (found == peer.waiting.end()) {
      ++it;
      continue;
    }
    if (!parked.complete) return;  // end_frame() calls this again
    const std::shared_ptr<Message> receive = std::move(*found);
    peer.waiting.erase(found);
    if (!fits(parked.header, parked.text, *receive, src)) return;
    if (parked.header.type == FrameType::kAsk) {
      peer.streaming.emplace(parked.header.key, receive);
      FrameHeader go;
      go.type = FrameType::kGo;
      go.key = parked.header.key;
      link_(src)->push(go, {});
    } else {
      const std::byte* from = parked.self ? parked.self->call.input : parked.payload.get();
      if (receive->bytes > 0)
        std::memcpy(receive->call.output, from, static_cast<size_t>(receive->bytes));
      receive->done = true;
      if (parked.self) parked.self->done = true;
      peer.parked_bytes -= parked.header.bytes;
    }
    it = peer.parked.erase(it);
  }
}

std::byte* Messages::begin_frame(int src, const FrameHeader& header, std::string_view text) {
  Peer& peer = peers_[src];
  switch (header.type) {
    case FrameType::kGo: {
      const auto it = peer.asking.find(header.key);
      if (it == peer.asking.end()) return nullptr;
      const std::shared_ptr<Message> message = it->second;
      peer.asking.erase(it);
      FrameHeader part;
      part.type = FrameType::kPart;
      part.key = header.key;
      for (int64_t at = 0; at < message->bytes; at += kPartBytes) {
        const int64_t n = std::min(kPartBytes, message->bytes - at);
        link_(src)->push(part, {}, message->call.input + at, static_cast<size_t>(n), message,
                         at + n == message->bytes ? 1 : 0);
      }
      return nullptr;
    }
    case FrameType::kPart: {
      const auto it = peer.streaming.find(header.key);
      if (it == peer.streaming.end() ||
          it->second->arrived + static_cast<int64_t>(header.bytes) > it->second->bytes) {
        report_("rank " + std::to_string(src) +
                " sent a piece of a message that was not asked for");
        peer.parking = std::make_shared<Parked>();
        peer.parking->payload = std::make_unique<std::byte[]>(header.bytes);
        return peer.parking->payload.get();
      }
      peer.current = it->second;
      return peer.current->call.output + peer.current->arrived;
    }
    case FrameType::kAsk:
    case FrameType::kMessage: {
      // A parked message with this tag would have been taken: none is parked while a receive waits.
      if (header.type == FrameType::kMessage) {
        if (auto receive = take_waiting(peer, header.tag)) {
          const bool whole = static_cast<int64_t>(header.bytes) == receive->bytes;
          if (fits(header, text, *receive, src) && whole) {
            peer.current = receive;
            return receive->call.output;
          }
        }
      }
      auto parked = std::make_shared<Parked>();
      parked->header = header;
      parked->text = text;
      parked->complete = header.type == FrameType::kAsk;
      parked->payload = std::make_unique<std::byte[]>(header.bytes);
      peer.parked_bytes += header.bytes;
      std::byte* target = parked->payload.get();
      if (header.type == FrameType::kMessage) peer.parking = parked;
      peer.parked.push_back(std::move(parked));
      if (header.type == FrameType::kAsk) take_parked(src);
      return target;
    }
    default:
      return nullptr;
  }
}

void Messages::end_frame(int src, const FrameHeader& header) {
  Peer& peer = peers_[src];
  if (peer.parking) {
    peer.parking->complete = true;
    peer.parking.reset();
    take_parked(src);
  } else if (peer.current) {
    peer.current->arrived += static_cast<int64_t>(header.bytes);
    if (peer.current->arrived == peer.current->bytes) {
      peer.current->done = true;
      if (header.type == FrameType::kPart) peer.streaming.erase(header.key);
    }
    peer.current.reset();
  }
}

bool Messages::awaits(int src) const {
  const Peer& peer = peers_[src];
  return !peer.waiting.empty() || !peer.streaming.empty() || !peer.asking.empty();
}

bool Messages::has_unclaimed(int src, int tag) const {
  const auto& parked = peers_[src].parked;
  return std::any_of(parked.begin(), parked.end(),
                     [tag](const auto& one) { return one->header.tag == tag; });
}

void Messages::clear() {
  for (Peer& peer : peers_) peer = Peer{};
}

}  // namespace lockstep::inline v0::tcp
