// Engine: moving data. engine_wait.cpp has waiting and failing.
#include "lockstep/comm/engines/tcp/engine.h"

#include <poll.h>
#include <sys/epoll.h>

#include <algorithm>
#include <cerrno>
#include <iterator>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/core/cpus.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0::tcp {
namespace {

constexpr size_t kActive = 3;                      // simultaneous exchanges
constexpr size_t kParkedLimit = size_t{16} << 20;  // unrequested bytes of one peer
constexpr size_t kParkedCost = 512;                // bookkeeping per frame

}  // namespace

Engine::Engine(std::vector<UniqueFd> links, int rank, const ScheduleSizes& sizes)
    : rank_(rank),
      size_(static_cast<int>(links.size())),
      sizes_(sizes),
      spins_(host_cpu_count() > 1 ? 20 : 1),
      epoll_(::epoll_create1(EPOLL_CLOEXEC)),
      peers_(links.size()),
      messages_(
          rank, size_, [this](int peer) { return link_for(peer); },
          [this](const std::string& text) { raise({Failure::kMismatch, -1, text}); }) {
  if (!epoll_) throw system_error("epoll_create1", errno);
  for (int r = 0; r < size_; ++r) {
    if (r == rank_) continue;
    LOCKSTEP_CHECK(static_cast<bool>(links[r]), "every peer is connected");
    peers_[r].link = std::make_unique<Link>(std::move(links[r]), r);
    watch(r);
  }
}

Engine::~Engine() {
  for (Peer& peer : peers_) {
    if (!peer.link) continue;
    if (adopted_) {
      // The first message may still be on its way to a peer that sees this connection end.
      push_abort(peer, *adopted_, false);
    } else if (!broken_) {
      FrameHeader bye;
      bye.type = FrameType::kBye;
      peer.link->push(bye, {});
    }
    peer.link->flush();
  }
}

uint64_t Engine::payload_sent(int peer) const {
  return peers_[peer].link ? peers_[peer].link->payload_sent() : 0;
}

// The link, registered as having output.
Link* Engine::link_for(int peer) {
  Peer& p = peers_[peer];
  if (p.link && !p.dirty) {
    p.dirty = true;
    dirty_.push_back(peer);
  }
  return p.link.get();
}

const Record* Engine::record(uint64_t sequence) const {
  const auto it =
      std::lower_bound(records_.begin(), records_.end(), sequence,
                       [](const auto& one, uint64_t wanted) { return one->sequence < wanted; });
  return it != records_.end() && (*it)->sequence == sequence ? it->get() : nullptr;
}

const Record& Engine::latest() const {
  static const Record kNone;
  return records_.empty() ? kNone : *records_.back();
}

// A record without another owner is complete: no exchange of it is left to send.
void Engine::forget_old() {
  while (over_ < records_.size() && records_[over_].use_count() == 1) ++over_;
  for (; records_.size() >= kKept && over_ > kLookBack; --over_) records_.pop_front();
}

std::shared_ptr<const Record> Engine::enter(const Call& call) {
  check_broken();
  LOCKSTEP_CHECK(call.sequence > entered_, "sequence numbers ascend");
  forget_old();
  const auto mine = std::make_shared<const Record>(
      Record{call.sequence, fingerprint(call), history_, describe(call)});
  records_.push_back(mine);
  entered_ = call.sequence;
  history_ = (history_ ^ mine->fingerprint) * 0x9e3779b97f4a7c15ULL + 1;
  for (int r = 0; r < size_; ++r) {
    std::map<uint64_t, Record>& ahead = peers_[r].ahead;
    while (!ahead.empty() && ahead.begin()->first <= entered_) {
      compare(r, ahead.begin()->second);
      ahead.erase(ahead.begin());
    }
  }
  return mine;
}

std::shared_ptr<Exchange> Engine::exchange(const Call& call, std::shared_ptr<const Record> record,
                                           std::vector<int> members, int phase) {
  LOCKSTEP_CHECK(phase < kPhases, "a collective has at most kPhases exchanges");
  const uint64_t key = collective_key(record->sequence, phase);
  const auto index =
      static_cast<int>(std::find(members.begin(), members.end(), rank_) - members.begin());
  auto exchange =
      std::make_shared<Exchange>(call, std::move(record), std::move(members), index, key);
  LOCKSTEP_CHECK(queue_.empty() ? key > activated_ : key > queue_.back()->key(), "keys ascend");
  queue_.push_back(exchange);
  return exchange;
}

std::shared_ptr<Message> Engine::message(const Call& call) {
  check_broken();
  auto message = messages_.post(call);
  if (call.peer != rank_) watch(call.peer);
  return message;
}

Exchange* Engine::find(uint64_t key) const {
  const auto it =
      std::lower_bound(queue_.begin(), queue_.end(), key,
                       [](const auto& one, uint64_t wanted) { return one->key() < wanted; });
  const bool found = it != queue_.end() && (*it)->key() == key && (*it)->active();
  return found ? it->get() : nullptr;
}

void Engine::activate() {
  if (stands_still()) return;
  size_t active = 0;
  for (size_t i = 0; i < queue_.size() && active < kActive;) {
    const std::shared_ptr<Exchange> exchange = queue_[i];
    if (!exchange->active()) {
      activated_ = exchange->key();
      exchange->activate(*this, scratch_, sizes_);
      for (const int r : exchange->members()) {
        if (r == rank_) continue;
        std::set<uint64_t>& started = peers_[r].started;
        if (started.contains(activated_)) exchange->peer_started(r);
        // Older entries concerned exchanges that needed no start message.
        started.erase(started.begin(), started.upper_bound(activated_));
        deliver_parked(r);
        watch(r);
      }
    }
    if (exchange->done()) {
      exchange->retire(scratch_);
      queue_.erase(queue_.begin() + static_cast<std::ptrdiff_t>(i));
      continue;
    }
    ++active;
    ++i;
  }
}

void Engine::send_call(int peer, const Exchange& exchange, uint64_t amount) {
  FrameHeader header;
  header.type = FrameType::kCall;
  header.key = exchange.key();
  header.amount = amount;
  const Record& mine = exchange.record();
  header.fingerprint = mine.fingerprint;
  header.history = mine.history;
  // Later exchanges of one collective need not send the text again.
  const bool told = peers_[peer].told_sequence == mine.sequence;
  const std::string_view text = told ? std::string_view() : mine.text;
  peers_[peer].told_sequence = mine.sequence;
  link_for(peer)->push(header, text);
}

void Engine::send_data(int peer, uint64_t key, const std::byte* data, size_t bytes,
                       std::shared_ptr<SendListener> listener, int token) {
  FrameHeader header;
  header.type = FrameType::kData;
  header.key = key;
  link_for(peer)->push(header, {}, data, bytes, std::move(listener), token);
}

std::byte* Engine::begin_frame(int peer, const FrameHeader& header, std::string_view text) {
  Peer& from = peers_[peer];
  switch (header.type) {
    case FrameType::kCall:
      heard_call(peer, header, text);
      return nullptr;
    case FrameType::kData:
      return begin_data(peer, header);
    case FrameType::kHere:
      hear_answer(peer, header, text);
      return nullptr;
    case FrameType::kWhere:
      if (header.kind == kWhereNow)
        push_here(peer, kHereNow);
      else
        answer(peer, sequence_of(header.key));
      return nullptr;
    case FrameType::kAbort:
      raise({failure_of(header.kind).value_or(Failure::kOther),
             header.tag >= 0 && header.tag < size_          ? header.tag
             : failure_of(header.kind) == Failure::kTimeout ? -1
                                                            : peer,
             (header.amount == kFirstHand ? "rank " + std::to_string(peer) + " reported: " : "") +
                 std::string(text),
             0, false, true});
      return nullptr;
    case FrameType::kBye:
      from.departed = true;
      return nullptr;
    default:
      ++arrivals_;
      return messages_.begin_frame(peer, header, text);
  }
}

void Engine::end_frame(int peer, const FrameHeader& header) {
  Peer& from = peers_[peer];
  switch (header.type) {
    case FrameType::kData:
      if (from.current) {
        const std::shared_ptr<Exchange> exchange = std::move(from.current);
        from.current.reset();
        exchange->received(peer);
      } else if (from.parking) {
        std::exchange(from.parking, nullptr)->complete = true;
        deliver_parked(peer);
      }
      return;
    case FrameType::kMessage:
    case FrameType::kPart:
      messages_.end_frame(peer, header);
      return;
    default:
      return;
  }
}

std::byte* Engine::begin_data(int peer, const FrameHeader& header) {
  ++arrivals_;
  Peer& from = peers_[peer];
  if (stands_still()) {
    from.junk_memory.resize(kMaxPayload);
    return from.junk_memory.data();
  }
  if (Exchange* exchange = find(header.key)) {
    bool expected = false;
    std::byte* target = exchange->expect(peer, header.bytes, expected);
    if (expected) {
      from.current = exchange->shared_from_this();
      return target;
    }
  }
  if (header.key <= activated_) {
    const Record* mine = record(sequence_of(header.key));
    raise({Failure::kMismatch, -1,
           "rank " + std::to_string(peer) + " sent " + std::to_string(header.bytes) +
               " bytes that rank " + std::to_string(rank_) + " does not expect in #" +
               std::to_string(sequence_of(header.key)) + " " +
               (mine != nullptr ? mine->text : std::string("a call long past")) +
               "; all ranks must agree on the size of every part"});
    from.junk_memory.resize(kMaxPayload);
    return from.junk_memory.data();
  }
  ParkedData& parked = from.parked[header.key].emplace_back();
  parked.bytes = header.bytes;
  parked.payload = std::make_unique<std::byte[]>(header.bytes);
  from.parked_bytes += header.bytes + kParkedCost;
  from.parking = &parked;
  return parked.payload.get();
}

// Gives data that arrived too early to the exchanges that have started since.
void Engine::deliver_parked(int peer) {
  Peer& from = peers_[peer];
  for (auto it = from.parked.begin(); it != from.parked.end() && it->first <= activated_;) {
    const uint64_t key = it->first;
    std::deque<ParkedData>& frames = it->second;
    for (; !frames.empty() && frames.front().complete; frames.pop_front()) {
      const ParkedData& parked = frames.front();
      Exchange* exchange = find(key);
      bool expected = false;
      std::byte* target =
          exchange != nullptr ? exchange->expect(peer, parked.bytes, expected) : nullptr;
      if (!expected) {
        raise({Failure::kMismatch, -1,
               "rank " + std::to_string(peer) + " sent " + std::to_string(parked.bytes) +
                   " bytes that rank " + std::to_string(rank_) + " does not expect in #" +
                   std::to_string(sequence_of(key)) +
                   "; all ranks must agree on the size of every part",
               sequence_of(key)});
      } else {
        if (parked.bytes > 0) std::copy_n(parked.payload.get(), parked.bytes, target);
        exchange->received(peer);
      }
      from.parked_bytes -= parked.bytes + kParkedCost;
    }
    it = frames.empty() ? from.parked.erase(it) : std::next(it);
  }
}

void Engine::heard_call(int peer, const FrameHeader& header, std::string_view text) {
  Peer& from = peers_[peer];
  const uint64_t sequence = sequence_of(header.key);
  if (!text.empty() || from.last.sequence != sequence) {
    Record theirs{sequence, header.fingerprint, header.history, std::string(text)};
    if (sequence >= from.last.sequence) from.last = theirs;
    if (sequence > entered_)
      from.ahead.emplace(sequence, std::move(theirs));
    else
      compare(peer, theirs);
  }
  if (header.key > activated_)
    from.started.insert(header.key);
  else if (Exchange* exchange = find(header.key))
    exchange->peer_started(peer);
}

bool Engine::wants_input(int peer) const {
  const Peer& from = peers_[peer];
  if (from.parked_bytes + messages_.parked_bytes(peer) < kParkedLimit) return true;
  // There is too much data without a receiver: the rest waits at the sender, unless this rank waits
  // for data behind it.
  if (messages_.awaits(peer) || asking_) return true;
  return std::any_of(queue_.begin(), queue_.end(),
                     [peer](const auto& e) { return e->active() && e->exchanges_with(peer); });
}

void Engine::watch(int peer) {
  Peer& p = peers_[peer];
  if (!p.link->lost().empty()) return;
  const uint32_t wanted = (wants_input(peer) ? static_cast<uint32_t>(EPOLLIN) : 0u) |
                          (p.link->has_output() && !p.dirty ? static_cast<uint32_t>(EPOLLOUT) : 0u);
  if (wanted == p.events) return;
  epoll_event event{};
  event.events = wanted;
  event.data.u32 = static_cast<uint32_t>(peer);
  const int operation = p.events == 0 ? EPOLL_CTL_ADD : wanted == 0 ? EPOLL_CTL_DEL : EPOLL_CTL_MOD;
  if (::epoll_ctl(epoll_.get(), operation, p.link->fd(), &event) != 0)
    throw system_error("epoll_ctl", errno);
  p.events = wanted;
}

bool Engine::flush() {
  bool moved = false;
  while (!dirty_.empty()) {
    const std::vector<int> now = std::move(dirty_);
    dirty_.clear();
    for (const int peer : now) {
      Peer& p = peers_[peer];
      p.dirty = false;  // frames that are pushed from inside set it again
      moved |= p.link->flush();
      if (!p.dirty) watch(peer);
    }
  }
  return moved;
}

// Handles all connections once. Records failures without throwing them.
bool Engine::pump(Deadline::Duration wait) {
  activate();
  bool moved = flush();
  if (moved) activate();
  if (wait > Deadline::Duration::zero() && !moved && !trouble_) {
    const auto seconds = std::chrono::floor<std::chrono::seconds>(wait);
    const timespec time = {seconds.count(), (wait - seconds).count()};
    pollfd ready = {epoll_.get(), POLLIN, 0};
    ::ppoll(&ready, 1, &time, nullptr);  // epoll_wait() counts in milliseconds
  }
  std::array<epoll_event, 32> events;
  const int count = ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), 0);
  for (int i = 0; i < count; ++i) {
    const auto peer = static_cast<int>(events[static_cast<size_t>(i)].data.u32);
    Peer& p = peers_[peer];
    const uint32_t what = events[static_cast<size_t>(i)].events;
    if ((what & EPOLLOUT) != 0) {
      p.dirty = true;
      moved |= p.link->flush();
      p.dirty = std::find(dirty_.begin(), dirty_.end(), peer) != dirty_.end();
    }
    if ((what & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0) moved |= p.link->receive(*this);
    if (!p.link->lost().empty()) {
      if (p.events != 0) ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, p.link->fd(), nullptr);
      p.events = 0;
    } else {
      watch(peer);
    }
  }
  activate();
  moved |= flush();
  return moved;
}

bool Engine::advance(Pending* pending, Deadline::Duration wait) {
  check_broken();
  const bool moved = pump(wait);
  if (!trouble_) return moved;
  // Data that was sent before the group broke, and has arrived, still counts.
  if (trouble_->reported) {
    while (pump() || (pending != nullptr && pending->advance())) {
    }
  }
  if (pending != nullptr && pending->done()) return true;
  settle();
}

void Engine::progress() noexcept {
  if (broken_) return;
  try {
    advance();
  } catch (...) {
    // The error belongs to the caller that waits.
    if (!broken_) broken_ = std::current_exception();
  }
}

}  // namespace lockstep::inline v0::tcp
