#include "lockstep/comm/engines/rounds/channels.h"

#include <algorithm>
#include <cstring>
#include <string>

#include "lockstep/comm/engines/rounds/stream_copy.h"
#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::rounds {

// The header before a payload in a channel's ring.
struct MessageHeader {
  uint64_t bytes;
  int64_t count;
  int32_t dtype;
  int32_t tag;
  uint64_t address;  // the payload's address in the sender's memory; 0: it follows here
  char text[160];
};
static_assert(sizeof(MessageHeader) == 192);

namespace {

MessageHeader make_header(const Message& message, bool shown) {
  MessageHeader header{};
  header.bytes = static_cast<uint64_t>(message.bytes);
  header.count = message.call.count;
  header.dtype = static_cast<int32_t>(message.call.dtype);
  header.tag = message.call.tag;
  if (shown) header.address = reinterpret_cast<uint64_t>(message.call.input);
  const std::string text = describe(message.call);
  text.copy(header.text, sizeof header.text - 1);
  return header;
}

// The writer's and the reader's end of a byte ring.
struct Ring {
  ChannelState& state;
  std::byte* bytes;
  uint64_t capacity;

  int64_t room() const {
    return static_cast<int64_t>(capacity - (state.written.load(std::memory_order_relaxed) -
                                            state.read.load(std::memory_order_acquire)));
  }

  // Writes as many bytes as fit; returns their number.
  int64_t put(const std::byte* from, int64_t size) {
    const uint64_t written = state.written.load(std::memory_order_relaxed);
    const int64_t n = std::min(room(), size);
    if (n == 0) return 0;
    const uint64_t at = written % capacity;
    const int64_t first = std::min<int64_t>(n, static_cast<int64_t>(capacity - at));
    rounds::copy(bytes + at, from, first);
    rounds::copy(bytes, from + first, n - first);
    state.written.store(written + static_cast<uint64_t>(n), std::memory_order_seq_cst);
    return n;
  }

  // Reads as many bytes as there are; returns their number.
  int64_t take(std::byte* to, int64_t size) {
    const uint64_t read = state.read.load(std::memory_order_relaxed);
    const uint64_t there = state.written.load(std::memory_order_acquire) - read;
    const auto n = static_cast<int64_t>(std::min<uint64_t>(there, static_cast<uint64_t>(size)));
    if (n == 0) return 0;
    const uint64_t at = read % capacity;
    const int64_t first = std::min<int64_t>(n, static_cast<int64_t>(capacity - at));
    rounds::copy(to, bytes + at, first);
    rounds::copy(to + first, bytes, n - first);
    state.read.store(read + static_cast<uint64_t>(n), std::memory_order_seq_cst);
    return n;
  }
};

void check_fits(const MessageHeader& header, const Message& receive, int src) {
  if (header.count == receive.call.count &&
      header.dtype == static_cast<int32_t>(receive.call.dtype))
    return;
  throw Mismatch("a message does not fit its receive: rank " + std::to_string(src) + " called " +
                 header.text + ", this rank called " + describe(receive.call) +
                 "; dtype and number of elements must agree");
}

}  // namespace

struct Channels::Incoming {
  // A message taken out of the ring before its receive was posted.
  struct Parked {
    MessageHeader header;
    std::unique_ptr<std::byte[]> payload;
    bool complete = false;
  };
  std::deque<std::shared_ptr<Message>> waiting;  // posted receives, in order
  std::deque<std::shared_ptr<Parked>> parked;    // in order of arrival

  // The message at the front of the ring.
  MessageHeader header{};
  int64_t header_bytes = 0;  // bytes of the header read so far
  bool open = false;         // the payload has a target
  int64_t left = 0;          // bytes of the payload still to come
  std::byte* target = nullptr;
  std::shared_ptr<Message> receive;  // the owner of the target: a receive,
  std::shared_ptr<Parked> parking;   // or memory of this rank

  std::shared_ptr<Message> take_waiting(int tag) {
    const auto it = std::find_if(waiting.begin(), waiting.end(),
                                 [tag](const auto& m) { return m->call.tag == tag; });
    if (it == waiting.end()) return nullptr;
    auto found = *it;
    waiting.erase(it);
    return found;
  }
};

Channels::Channels(Region region, int rank, Pull pull, int64_t pulls_from)
    : region_(region),
      rank_(rank),
      pull_(std::move(pull)),
      pulls_from_(pulls_from),
      outgoing_(region.shape().size),
      incoming_(region.shape().size) {}

Channels::~Channels() = default;

std::shared_ptr<Message> Channels::post(const Call& call) {
  auto message = std::make_shared<Message>();
  message->call = call;
  message->call.record = nullptr;  // it belongs to the caller
  message->bytes = call.count * static_cast<int64_t>(c10::elementSize(call.dtype));
  if (call.op == Op::kSend)
    outgoing_[call.peer].queue.push_back(message);
  else
    incoming_[call.peer].waiting.push_back(message);
  ++busy_;
  return message;
}

bool Channels::progress() {
  if (busy_ == 0) return false;
  bool moved = false;
  for (int peer = 0; peer < region_.shape().size; ++peer) {
    if (!outgoing_[peer].exposed.empty()) moved |= settle_pulled(peer);
    if (!outgoing_[peer].queue.empty()) moved |= progress_sends(peer);
    moved |= progress_receives(peer);
  }
  return moved;
}

bool Channels::exposes() const {
  return std::any_of(outgoing_.begin(), outgoing_.end(),
                     [](const Outgoing& out) { return out.shown || !out.exposed.empty(); });
}

bool Channels::settle_pulled(int dst) {
  Outgoing& out = outgoing_[dst];
  const uint64_t pulled = region_.channel(rank_, dst).pulled.load(std::memory_order_acquire);
  const bool moved = out.pulled < pulled;
  for (; out.pulled < pulled; ++out.pulled) {
    out.exposed.front()->done = true;
    out.exposed.pop_front();
    --busy_;
  }
  return moved;
}

bool Channels::progress_sends(int dst) {
  Outgoing& out = outgoing_[dst];
  Ring ring{region_.channel(rank_, dst), region_.channel_ring(rank_, dst),
            region_.shape().channel_bytes};
  constexpr auto kHeader = static_cast<int64_t>(sizeof(MessageHeader));
  bool moved = false;
  while (!out.queue.empty()) {
    Message& message = *out.queue.front();
    if (out.sent == 0)
      out.shown = pull_ && message.bytes >= pulls_from_ && message.bytes + kHeader > ring.room();
    if (out.sent < kHeader) {
      const MessageHeader header = make_header(message, out.shown);
      const int64_t n =
          ring.put(reinterpret_cast<const std::byte*>(&header) + out.sent, kHeader - out.sent);
      out.sent += n;
      moved |= n > 0;
      if (out.sent < kHeader) return moved;
    }
    if (out.shown) {
      out.exposed.push_back(out.queue.front());
      out.queue.pop_front();
      out.sent = 0;
      out.shown = false;
      continue;
    }
    if (const int64_t left = kHeader + message.bytes - out.sent; left > 0) {
      const int64_t n = ring.put(message.call.input + (out.sent - kHeader), left);
      out.sent += n;
      moved |= n > 0;
      if (n < left) return moved;
    }
    message.done = true;
    --busy_;
    out.sent = 0;
    out.queue.pop_front();
  }
  return moved;
}

// Finds the front message's target. Returns false if the message must stay in the ring for now.
bool Channels::open_message(int src) {
  Incoming& in = incoming_[src];
  if (auto receive = in.take_waiting(in.header.tag)) {
    check_fits(in.header, *receive, src);
    in.target = receive->call.output;
    in.receive = std::move(receive);
    in.left = static_cast<int64_t>(in.header.bytes);
    in.open = true;
  } else if (!in.waiting.empty()) {
    park(src);
  } else {
    return false;
  }
  return true;
}

// Memory of this rank becomes the front message's target.
void Channels::park(int src) {
  Incoming& in = incoming_[src];
  auto parked = std::make_shared<Incoming::Parked>();
  parked->header = in.header;
  parked->payload = std::make_unique<std::byte[]>(in.header.bytes);
  in.target = parked->payload.get();
  in.parking = parked;
  in.parked.push_back(std::move(parked));
  in.left = static_cast<int64_t>(in.header.bytes);
  in.open = true;
}

bool Channels::probe(int src, int tag) {
  Incoming& in = incoming_[src];
  for (;;) {
    progress_receives(src);  // earlier posts come first
    for (const auto& parked : in.parked) {
      if (parked->complete && parked->header.tag == tag) return true;
    }
    if (in.open || !read_header(src)) return false;
    if (in.header.tag == tag) return true;
    park(src);
  }
}

// Returns true once the front message's header has been read.
bool Channels::read_header(int src) {
  Incoming& in = incoming_[src];
  constexpr auto kHeader = static_cast<int64_t>(sizeof(MessageHeader));
  if (in.header_bytes < kHeader) {
    Ring ring{region_.channel(src, rank_), region_.channel_ring(src, rank_),
              region_.shape().channel_bytes};
    in.header_bytes += ring.take(reinterpret_cast<std::byte*>(&in.header) + in.header_bytes,
                                 kHeader - in.header_bytes);
  }
  return in.header_bytes == kHeader;
}

// Moves the part of the open message's payload that has arrived. True if anything moved.
bool Channels::take_payload(int src) {
  Incoming& in = incoming_[src];
  ChannelState& state = region_.channel(src, rank_);
  if (in.header.address != 0) {
    if (!pull_(src, in.header.address, in.target, in.left)) return false;
    in.left = 0;
    state.pulled.store(state.pulled.load(std::memory_order_relaxed) + 1, std::memory_order_seq_cst);
    return true;
  }
  Ring ring{state, region_.channel_ring(src, rank_), region_.shape().channel_bytes};
  const int64_t n = ring.take(in.target, in.left);
  in.target += n;
  in.left -= n;
  return n > 0;
}

bool Channels::progress_receives(int src) {
  Incoming& in = incoming_[src];
  bool moved = false;
  // Completes the receives that a parked message satisfies.
  for (auto parked = in.parked.begin(); parked != in.parked.end();) {
    std::shared_ptr<Message> receive;
    if ((*parked)->complete) receive = in.take_waiting((*parked)->header.tag);
    if (!receive) {
      ++parked;
      continue;
    }
    check_fits((*parked)->header, *receive, src);
    if (receive->bytes > 0) {
      std::memcpy(receive->call.output, (*parked)->payload.get(),
                  static_cast<size_t>(receive->bytes));
    }
    receive->done = true;
    --busy_;
    moved = true;
    parked = in.parked.erase(parked);
  }
  while (!in.waiting.empty() || in.open) {
    const int64_t header_bytes = in.header_bytes;
    const bool whole = read_header(src);
    moved |= in.header_bytes > header_bytes;
    if (!whole) return moved;
    if (!in.open && !open_message(src)) return moved;
    if (in.left > 0) {
      moved |= take_payload(src);
      if (in.left > 0) return moved;
    }
    in.header_bytes = 0;
    in.open = false;
    moved = true;
    if (in.receive) {
      in.receive->done = true;
      --busy_;
      in.receive.reset();
    } else {
      in.parking->complete = true;
      in.parking.reset();
      return progress_receives(src) || moved;
    }
  }
  return moved;
}

}  // namespace lockstep::inline v0::rounds
