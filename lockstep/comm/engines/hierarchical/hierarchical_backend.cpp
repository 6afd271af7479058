#include "lockstep/comm/engines/hierarchical/hierarchical_backend.h"

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <thread>

#include "lockstep/comm/engines/rounds/rounds_backend.h"
#include "lockstep/core/errors.h"

namespace lockstep::inline v0 {

using hierarchical::Stage;

// The traffic between hosts.
struct HierarchicalBackend::Crossing {
  std::shared_ptr<tcp::Exchange> exchange;  // moves the data; with a carrier, the barrier before it
  Backend* carrier = nullptr;
  Call call = {};  // for the carrier
  std::unique_ptr<Request> request = nullptr;
  bool over = false;

  bool done() const { return carrier != nullptr ? over : exchange->done(); }
  bool is_carried() const { return carrier != nullptr && exchange->done() && !over; }
};

// A pending collective.
class HierarchicalBackend::Operation final : public tcp::Pending {
 public:
  Operation(HierarchicalBackend& backend, const Call& call,
            std::shared_ptr<const tcp::Record> record)
      : backend_(backend), call_(call), record_(std::move(record)) {}

  bool done() const override { return done_; }
  const Call& call() const override { return call_.get(); }
  bool advance() override { return backend_.advance(); }
  bool needs_advance() const override {
    if (*backend_.local_messages_ > 0) return true;
    if (backend_.queue_.empty()) return false;
    return backend_.queue_.front()->is_inside() || is_impatient();
  }
  bool is_impatient() const override {
    return !backend_.queue_.empty() && backend_.queue_.front()->is_carried();
  }
  // The operations inside the host are watched by its own engine.
  std::vector<int> awaited() const override {
    const Operation& front = backend_.queue_.empty() ? *this : *backend_.queue_.front();
    const Crossing* crossing = front.crossing();
    if (crossing == nullptr) return {};
    if (crossing->is_carried()) {
      // A rank that has left may have done its part: the carrier knows.
      std::vector<int> dead = crossing->exchange->members();
      std::erase_if(dead, [this](int r) { return !backend_.between_->died(r); });
      return dead;
    }
    return crossing->exchange->active() ? crossing->exchange->awaited()
                                        : crossing->exchange->members();
  }
  std::vector<int> late() const override {
    const Operation& front = backend_.queue_.empty() ? *this : *backend_.queue_.front();
    const Crossing* crossing = front.crossing();
    if (!front.is_inside() && (crossing == nullptr || !crossing->is_carried())) return awaited();
    std::vector<int> others;
    for (const int r : front.is_inside() ? backend_.map_.mates() : crossing->exchange->members()) {
      if (r != backend_.map_.rank) others.push_back(r);
    }
    return others;
  }

 private:
  friend class HierarchicalBackend;
  bool is_inside() const {
    return planned_ && at_ < stages_.list.size() && stages_.list[at_].kind == Stage::Kind::kInside;
  }

  // The crossing that is awaited now.
  const Crossing* crossing() const {
    if (!planned_ || at_ == stages_.list.size() || is_inside()) return nullptr;
    const auto index = static_cast<size_t>(stages_.list[at_].exchange);
    return index < crossings_.size() ? &crossings_[index] : nullptr;
  }
  // Whether a carrier has an operation that waits for this rank to poll it.
  bool is_carried() const {
    return carried_ < crossings_.size() && crossings_[carried_].is_carried();
  }

  HierarchicalBackend& backend_;
  tcp::KeptCall call_;
  std::shared_ptr<const tcp::Record> record_;  // kept until the operation has ended
  bool planned_ = false;
  bool done_ = false;
  hierarchical::Stages stages_;
  size_t at_ = 0;
  std::unique_ptr<Request> inside_;  // the request of the current stage
  std::vector<Crossing> crossings_;
  size_t carried_ = 0;  // earlier stages no longer need the carrier
};

// A message between two ranks of this host. May outlive the backend, if unused.
class HierarchicalBackend::LocalMessage final : public tcp::Pending {
 public:
  LocalMessage(HierarchicalBackend& backend, const Call& call, std::unique_ptr<Request> request)
      : backend_(backend),
        count_(backend.local_messages_),
        call_(call),
        request_(std::move(request)) {
    ++*count_;
  }
  LocalMessage(const LocalMessage&) = delete;
  LocalMessage& operator=(const LocalMessage&) = delete;
  ~LocalMessage() override { finish(); }

  bool done() const override { return done_; }
  const Call& call() const override { return call_.get(); }
  std::vector<int> awaited() const override { return {}; }
  std::vector<int> late() const override { return {call().peer}; }
  bool needs_advance() const override { return true; }
  bool advance() override {
    const bool moved = backend_.advance();
    if (done_) return moved;
    bool over = false;
    backend_.guarded(call(), [&] { over = request_->poll(); });
    if (over) finish();
    return moved || over;
  }

 private:
  void finish() noexcept {
    if (!done_) --*count_;
    done_ = true;
  }

  HierarchicalBackend& backend_;
  std::shared_ptr<int> count_;
  tcp::KeptCall call_;
  std::unique_ptr<Request> request_;
  bool done_ = false;
};

// A message between two ranks of different hosts.
class HierarchicalBackend::RemoteMessage final : public tcp::Pending {
 public:
  RemoteMessage(HierarchicalBackend& backend, std::shared_ptr<tcp::Message> message)
      : backend_(backend), message_(std::move(message)) {}
  bool done() const override { return message_->done; }
  const Call& call() const override { return message_->call; }
  std::vector<int> awaited() const override { return {message_->call.peer}; }
  bool advance() override { return backend_.advance(); }
  bool needs_advance() const override {
    return !backend_.queue_.empty() || *backend_.local_messages_ > 0;
  }

 private:
  HierarchicalBackend& backend_;
  std::shared_ptr<tcp::Message> message_;
};

template <typename P>
class HierarchicalBackend::PendingRequest final : public Request {
 public:
  PendingRequest(HierarchicalBackend& backend, std::shared_ptr<P> pending)
      : backend_(backend), pending_(std::move(pending)) {}
  bool poll() override {
    bool over = false;
    or_give_up([&] { over = backend_.between_->poll(*pending_); });
    return over;
  }
  void wait(Deadline deadline) override {
    or_give_up([&] { backend_.between_->wait(*pending_, deadline); });
  }

 private:
  void or_give_up(const std::function<void()>& fn) {
    try {
      fn();
    } catch (...) {
      backend_.give_up();
      throw;
    }
  }

  HierarchicalBackend& backend_;
  std::shared_ptr<P> pending_;
};

HierarchicalBackend::HierarchicalBackend(hierarchical::HostMap map, std::unique_ptr<Backend> inside,
                                         std::unique_ptr<tcp::Engine> between, Carriers carriers)
    : capabilities_(rounds::engine_capabilities()),
      map_(std::move(map)),
      inside_(std::move(inside)),
      carriers_(std::move(carriers)),
      between_(std::move(between)) {
  Capabilities& c = capabilities_;
  c.backend = "hierarchical";
  c.rank_order = false;  // adds host by host
  c.authenticated = true;
  c.processes = true;
  c.shared_memory = true;
  if (!carriers_.name.empty()) c.backend += ":" + carriers_.name;
  if (!carriers_.all_ranks) return;
  // Operations that the carrier lacks are composed of those that it has, for all levels at once;
  // but the stages move anything as bytes, widen 16-bit floats and divide averages themselves.
  const Capabilities& carrier = carriers_.all_ranks->capabilities();
  c.deterministic = carrier.deterministic;
  c.authenticated = carrier.authenticated;
  for (size_t op = 0; op < c.ops.size(); ++op) {
    if (op == static_cast<size_t>(Op::kSend) || op == static_cast<size_t>(Op::kRecv)) continue;
    c.ops[op] = c.ops[op] && carrier.ops[op];
    c.v_ops[op] = c.v_ops[op] && carrier.v_ops[op];
  }
  c.reduce_dtypes &= carrier.reduce_dtypes | bit(at::kHalf) | bit(at::kBFloat16);
  c.float_reduce_ops &= carrier.float_reduce_ops | bit(ReduceOp::kAvg);
  c.integer_reduce_ops &= carrier.integer_reduce_ops;
  c.bool_reduce_ops &= carrier.bool_reduce_ops;
}

HierarchicalBackend::~HierarchicalBackend() = default;

void HierarchicalBackend::hear_between() {
  between_->check_broken();
  for (int turn = 0; turn < 100 && between_->advance(); ++turn) {
  }
}

void HierarchicalBackend::guarded(const Call& call, const std::function<void()>& fn) {
  const bool message = call.op == Op::kSend || call.op == Op::kRecv;
  try {
    fn();
  } catch (const Mismatch& error) {
    hear_between();
    if (!message) between_->fail_mismatch(call.sequence, error.what());
    std::string places;
    for (const int r : map_.mates()) places += (places.empty() ? "" : ", ") + std::to_string(r);
    between_->fail(
        Failure::kMismatch, -1,
        std::string(error.what()) + " (ranks counted inside the host of ranks " + places + ")");
  } catch (const PeerLost& error) {
    hear_between();
    // The inner engine may have detected the end of a process before it knew which rank it was.
    int place = error.rank();
    const Deadline soon = Deadline::seconds(0.2);
    while (place < 0 && !soon.expired()) {
      for (int i = 0; i < map_.mate_count() && place < 0; ++i) {
        if (i != map_.index() && inside_->lost(i)) place = i;
      }
      if (place < 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    const int lost = place >= 0 && place < map_.mate_count() ? map_.mates()[place] : -1;
    between_->fail(Failure::kPeerLost, lost,
                   "#" + std::to_string(call.sequence) + " " + describe(call) + " needs rank " +
                       (lost >= 0 ? std::to_string(lost) : std::string("?")) +
                       " of this host, which is gone: " + error.what());
  }
}

void HierarchicalBackend::guarded(const Call& call, const std::vector<int>& members,
                                  const std::function<void()>& fn) {
  const std::string heading = "#" + std::to_string(call.sequence) + " " + describe(call);
  try {
    fn();
  } catch (const Timeout& error) {
    hear_between();
    between_->fail(Failure::kTimeout, -1,
                   heading + ": all have called it, but the data did not arrive: " + error.what());
  } catch (const Mismatch& error) {
    hear_between();
    between_->fail(Failure::kMismatch, -1, heading + ": " + error.what());
  } catch (const PeerLost& error) {
    // The connections show which rank is gone.
    const Deadline soon = Deadline::seconds(0.5);
    int lost = -1;
    while (lost < 0 && !soon.expired()) {
      hear_between();
      for (const int r : members) {
        if (r != map_.rank && between_->lost(r)) lost = r;
      }
      if (lost < 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    hear_between();
    between_->fail(Failure::kPeerLost, lost,
                   heading + " needs " +
                       (lost >= 0 ? "rank " + std::to_string(lost) + ", which is gone: "
                                  : "a rank that does not answer: ") +
                       error.what());
  }
}

void HierarchicalBackend::give_up() noexcept {
  if (given_up_) return;
  given_up_ = true;
  for (const auto& carrier : {carriers_.all_ranks.get(), carriers_.line.get()}) {
    if (carrier != nullptr) carrier->abort({.text = "the group is broken"});
  }
}

std::unique_ptr<Request> HierarchicalBackend::start(const Call& call) {
  between_->check_broken();
  const bool message = call.op == Op::kSend || call.op == Op::kRecv;
  if (message && (inside_ == nullptr || map_.host_of[call.peer] != map_.host())) {
    auto pending = std::make_shared<RemoteMessage>(*this, between_->message(call));
    progress();
    return std::make_unique<PendingRequest<RemoteMessage>>(*this, std::move(pending));
  }
  if (message) {
    Call local = call;
    local.peer = map_.index_of[call.peer];
    local.sequence = ++inside_messages_;
    local.record = nullptr;
    std::unique_ptr<Request> request;
    guarded(call, [&] { request = inside_->start(local); });
    auto pending = std::make_shared<LocalMessage>(*this, call, std::move(request));
    progress();
    return std::make_unique<PendingRequest<LocalMessage>>(*this, std::move(pending));
  }
  auto operation = std::make_shared<Operation>(*this, call, between_->enter(call));
  queue_.push_back(operation);
  progress();
  return std::make_unique<PendingRequest<Operation>>(*this, std::move(operation));
}

bool HierarchicalBackend::advance() {
  if (*local_messages_ > 0) inside_->progress();
  bool moved = false;
  while (!queue_.empty()) {
    const std::shared_ptr<Operation> front = queue_.front();
    moved |= advance(*front);
    if (!front->done_) break;
    queue_.pop_front();
  }
  return moved;
}

bool HierarchicalBackend::carry(Operation& op) {
  bool moved = false;
  for (size_t i = op.carried_; i < op.crossings_.size(); ++i) {
    Crossing& crossing = op.crossings_[i];
    if (crossing.carrier == nullptr || crossing.over) {
      if (i == op.carried_) ++op.carried_;
      continue;
    }
    // All members run them in one order.
    if (!crossing.request && !crossing.exchange->done()) break;
    guarded(op.call(), crossing.exchange->members(), [&] {
      if (!crossing.request) crossing.request = crossing.carrier->start(crossing.call);
      crossing.over = crossing.request->poll();
    });
    if (!crossing.over) continue;
    crossing.request.reset();
    moved = true;
    if (i == op.carried_) ++op.carried_;
  }
  return moved;
}

void HierarchicalBackend::begin_crossing(Operation& op, Stage& stage) {
  Crossing crossing;
  // A barrier moves no data: it only needs the meeting.
  if (carriers_.all_ranks && stage.call.op != Op::kBarrier) {
    const bool all = static_cast<int>(stage.members.size()) == map_.size();
    crossing.carrier = all ? carriers_.all_ranks.get() : carriers_.line.get();
    crossing.call = stage.call;
    stage.call = Call();
    stage.call.sequence = op.call().sequence;
  }
  crossing.exchange =
      between_->exchange(stage.call, op.record_, std::move(stage.members), stage.exchange);
  op.crossings_.push_back(std::move(crossing));
}

bool HierarchicalBackend::advance(Operation& op) {
  if (!op.planned_) {
    const Backend* carrier = carriers_.all_ranks.get();
    op.stages_ = hierarchical::make_stages(
        op.call(), map_, scratch_,
        {.carrier = carrier != nullptr ? &carrier->capabilities() : nullptr,
         // gloo's reduce_scatter is an all_reduce
         .scatters_well = carriers_.name != "gloo"});
    op.planned_ = true;
  }
  bool moved = carry(op);
  for (; op.at_ < op.stages_.list.size(); ++op.at_) {
    Stage& stage = op.stages_.list[op.at_];
    switch (stage.kind) {
      case Stage::Kind::kInside: {
        bool over = false;
        guarded(op.call(), [&] {
          if (!op.inside_) {
            stage.call.sequence = ++inside_sequence_;
            op.inside_ = inside_->start(stage.call);
          }
          over = op.inside_->poll();
        });
        if (!over) return moved;
        op.inside_.reset();
        break;
      }
      case Stage::Kind::kStart:
        begin_crossing(op, stage);
        between_->progress();
        break;
      case Stage::Kind::kAwait: {
        const auto index = static_cast<size_t>(stage.exchange);
        if (!op.crossings_[index].done()) carry(op);
        if (!op.crossings_[index].done()) return moved;
        break;
      }
      case Stage::Kind::kWork:
        stage.work();
        break;
    }
    moved = true;
  }
  for (auto& block : op.stages_.scratch) scratch_.give(std::move(block));
  op.stages_.scratch.clear();
  op.record_.reset();
  op.done_ = true;
  return true;
}

SymmetricMemory HierarchicalBackend::allocate_shared(int64_t bytes) {
  if (inside_ == nullptr) {  // this rank is alone on its host
    std::shared_ptr<void> memory(std::calloc(1, static_cast<size_t>(bytes)), std::free);
    if (memory == nullptr)
      throw system_error("no " + std::to_string(bytes) + " bytes of shared memory", ENOMEM);
    auto* data = static_cast<std::byte*>(memory.get());
    return {data, std::move(memory), [] {}};
  }
  SymmetricMemory memory = inside_->allocate_shared(bytes);
  if (memory.data == nullptr) throw system_error("no memory that this host's ranks share", ENOTSUP);
  return memory;
}

void HierarchicalBackend::progress() {
  between_->progress();
  try {
    if (inside_) inside_->progress();
    between_->check_broken();
    if (advance()) between_->progress();
  } catch (...) {
    // The engine between the hosts is broken then, and throws in the next wait.
  }
}

// The carriers are of one kind, and the engines beside them take any thread.
const char* HierarchicalBackend::refuses_caller() const noexcept {
  return carriers_.all_ranks ? carriers_.all_ranks->refuses_caller() : nullptr;
}

bool HierarchicalBackend::lost(int rank) const {
  return between_->lost(rank);
}

Probe HierarchicalBackend::probe(int src, int tag) {
  if (inside_ == nullptr || map_.host_of[src] != map_.host()) return between_->probe(src, tag);
  between_->check_broken();
  Call call;
  call.op = Op::kRecv;
  call.peer = src;
  call.tag = tag;
  Probe found = Probe::kNothing;
  guarded(call, [&] { found = inside_->probe(map_.index_of[src], tag); });
  return found;
}

void HierarchicalBackend::abort(const Breakage& why) noexcept {
  give_up();
  between_->abort(why);
}

// All waits happen in the engine between the hosts.
void HierarchicalBackend::set_siblings(SiblingProgress* siblings) {
  between_->set_siblings(siblings);
}

void HierarchicalBackend::interrupt(const Breakage& why) noexcept {
  between_->interrupt(why);
}

bool HierarchicalBackend::close() noexcept {
  if (inside_ == nullptr || inside_->close()) return true;
  // The connections stay open with the others, so the goodbye must be sent as a message.
  abort(
      {.text = "rank " + std::to_string(map_.rank) + " left the group while a call was under way"});
  return false;
}

uint64_t HierarchicalBackend::payload_sent(int peer) const {
  return between_->payload_sent(peer);
}

}  // namespace lockstep::inline v0
