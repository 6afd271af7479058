#include "lockstep/comm/hierarchical/hierarchical_backend.h"

#include <algorithm>
#include <chrono>
#include <thread>

#include "lockstep/comm/rounds/rounds_backend.h"
#include "lockstep/comm/shm/shm_backend.h"
#include "lockstep/comm/tcp/tcp_backend.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/store/prefix_store.h"

namespace lockstep {

using hierarchical::Stage;

// A collective under way.
class HierarchicalBackend::Operation final : public tcp::Pending {
 public:
  Operation(HierarchicalBackend& backend, const Call& call) : backend_(backend), call_(call) {}

  bool done() const override { return done_; }
  const Call& call() const override { return call_.get(); }
  bool advance() override { return backend_.advance(); }
  bool needs_advance() const override {
    if (*backend_.local_messages_ > 0) return true;
    return !backend_.queue_.empty() && backend_.queue_.front()->is_inside();
  }
  // What happens inside the host, its own engine watches.
  std::vector<int> awaited() const override {
    const Operation& front = backend_.queue_.empty() ? *this : *backend_.queue_.front();
    if (!front.planned_ || front.at_ == front.stages_.list.size() || front.is_inside()) return {};
    const auto index = static_cast<size_t>(front.stages_.list[front.at_].exchange);
    if (index >= front.exchanges_.size()) return {};  // asked on the way from one to the next
    const tcp::Exchange& exchange = *front.exchanges_[index];
    return exchange.active() ? exchange.awaited() : exchange.members();
  }
  std::vector<int> late() const override {
    const Operation& front = backend_.queue_.empty() ? *this : *backend_.queue_.front();
    if (!front.is_inside()) return awaited();
    std::vector<int> others;
    for (const int r : backend_.map_.mates()) {
      if (r != backend_.map_.rank) others.push_back(r);
    }
    return others;
  }

 private:
  friend class HierarchicalBackend;
  bool is_inside() const {
    return planned_ && at_ < stages_.list.size() && stages_.list[at_].kind == Stage::Kind::kInside;
  }

  HierarchicalBackend& backend_;
  tcp::KeptCall call_;
  bool planned_ = false;
  bool done_ = false;
  hierarchical::Stages stages_;
  size_t at_ = 0;
  std::unique_ptr<Request> inside_;  // of the stage at hand
  std::vector<std::shared_ptr<tcp::Exchange>> exchanges_;
};

// A send or receive between two ranks of this host. May outlive the backend, unused.
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

// ... of different hosts.
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
  PendingRequest(tcp::Engine& engine, std::shared_ptr<P> pending)
      : engine_(engine), pending_(std::move(pending)) {}
  bool poll() override { return engine_.poll(*pending_); }
  void wait(Deadline deadline) override { engine_.wait(*pending_, deadline); }

 private:
  tcp::Engine& engine_;
  std::shared_ptr<P> pending_;
};

HierarchicalBackend::HierarchicalBackend(hierarchical::HostMap map, std::unique_ptr<Backend> inside,
                                         std::unique_ptr<tcp::Engine> between)
    : capabilities_(rounds::engine_capabilities()),
      map_(std::move(map)),
      inside_(std::move(inside)),
      between_(std::move(between)) {
  capabilities_.backend = "hierarchical";
  capabilities_.rank_order = false;  // host by host
  // A host's sum is rounded before it travels: 16-bit floats are sent as float32, averages divided
  // at the end.
  capabilities_.float32_accumulation = false;
  capabilities_.float_reduce_ops &= ~bit(ReduceOp::kAvg);
  capabilities_.authenticated = true;
  capabilities_.processes = true;
}

HierarchicalBackend::~HierarchicalBackend() = default;

void HierarchicalBackend::hear_between() {
  between_->check_broken();
  for (int turn = 0; turn < 100 && between_->advance(0); ++turn) {
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
    // The engine inside may have met the end of a process before it knew whose.
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

std::unique_ptr<Request> HierarchicalBackend::start(const Call& call) {
  between_->check_broken();
  const bool message = call.op == Op::kSend || call.op == Op::kRecv;
  if (message && (inside_ == nullptr || map_.host_of[call.peer] != map_.host())) {
    auto pending = std::make_shared<RemoteMessage>(*this, between_->message(call));
    progress();
    return std::make_unique<PendingRequest<RemoteMessage>>(*between_, std::move(pending));
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
    return std::make_unique<PendingRequest<LocalMessage>>(*between_, std::move(pending));
  }
  between_->enter(call);
  auto operation = std::make_shared<Operation>(*this, call);
  queue_.push_back(operation);
  progress();
  return std::make_unique<PendingRequest<Operation>>(*between_, std::move(operation));
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

bool HierarchicalBackend::advance(Operation& op) {
  if (!op.planned_) {
    op.stages_ = hierarchical::make_stages(op.call(), map_, scratch_);
    op.planned_ = true;
  }
  bool moved = false;
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
        op.exchanges_.push_back(
            between_->exchange(stage.call, std::move(stage.members),
                               tcp::collective_key(op.call().sequence, stage.exchange)));
        between_->progress();
        break;
      case Stage::Kind::kAwait:
        if (!op.exchanges_[static_cast<size_t>(stage.exchange)]->done()) return moved;
        break;
      case Stage::Kind::kWork:
        stage.work();
        break;
    }
    moved = true;
  }
  for (auto& block : op.stages_.scratch) scratch_.give(std::move(block));
  op.stages_.scratch.clear();
  op.done_ = true;
  return true;
}

void HierarchicalBackend::progress() {
  between_->progress();
  try {
    if (inside_) inside_->progress();
    between_->check_broken();
    if (advance()) between_->progress();
  } catch (...) {
    // The engine between the hosts is broken then, and throws when somebody waits.
  }
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

void HierarchicalBackend::abort(const std::string& reason) noexcept {
  between_->abort(Failure::kOther, -1, reason);
}

uint64_t HierarchicalBackend::payload_sent(int peer) const {
  return between_->payload_sent(peer);
}

std::vector<int> exchange_nodes(Store& store, const HierarchicalOptions& options,
                                Deadline deadline) {
  store.set("node/" + std::to_string(options.rank), std::to_string(options.node));
  std::vector<int> nodes;
  for (int r = 0; r < options.size; ++r) {
    const auto node = parse_int(store.get("node/" + std::to_string(r), deadline));
    if (!node) throw StoreError("rank " + std::to_string(r) + " shows no number of its host");
    nodes.push_back(static_cast<int>(*node));
  }
  return nodes;
}

std::unique_ptr<HierarchicalBackend> make_hierarchical_backend(std::shared_ptr<Store> store,
                                                               const HierarchicalOptions& options,
                                                               Deadline deadline) {
  hierarchical::HostMap map =
      hierarchical::make_host_map(exchange_nodes(*store, options, deadline), options.rank);
  PrefixStore mesh("between", store);
  auto between = make_tcp_engine(
      mesh, {.rank = options.rank, .size = options.size, .one_host = map.host_count() == 1},
      deadline);
  std::unique_ptr<Backend> inside;
  if (map.mate_count() > 1) {
    PrefixStore host("host" + std::to_string(map.host()), store);
    inside = make_shm_backend(host, map.index(), rounds::default_shape(map.mate_count()), deadline);
  }
  return std::make_unique<HierarchicalBackend>(std::move(map), std::move(inside),
                                               std::move(between));
}

}  // namespace lockstep
