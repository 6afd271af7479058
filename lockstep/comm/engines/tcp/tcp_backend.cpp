#include "lockstep/comm/engines/tcp/tcp_backend.h"

#include <numeric>

#include "lockstep/comm/engines/rounds/rounds_backend.h"
#include "lockstep/comm/engines/tcp/engine.h"
#include "lockstep/comm/engines/tcp/mesh.h"
#include "lockstep/core/env.h"

namespace lockstep::inline v0 {
namespace {

class TcpCollective final : public tcp::Pending {
 public:
  TcpCollective(const Call& call, std::shared_ptr<tcp::Exchange> exchange)
      : call_(call), exchange_(std::move(exchange)) {}
  bool done() const override { return exchange_->done(); }
  const Call& call() const override { return call_.get(); }
  std::vector<int> awaited() const override {
    return exchange_->active() ? exchange_->awaited() : exchange_->members();
  }

 private:
  tcp::KeptCall call_;
  std::shared_ptr<tcp::Exchange> exchange_;
};

class TcpMessage final : public tcp::Pending {
 public:
  explicit TcpMessage(std::shared_ptr<tcp::Message> message) : message_(std::move(message)) {}
  bool done() const override { return message_->done; }
  const Call& call() const override { return message_->call; }
  std::vector<int> awaited() const override { return {message_->call.peer}; }

 private:
  std::shared_ptr<tcp::Message> message_;
};

template <typename P>
class TcpRequest final : public Request {
 public:
  template <typename... Args>
  explicit TcpRequest(tcp::Engine& engine, Args&&... args)
      : engine_(engine), pending_(std::forward<Args>(args)...) {}
  bool poll() override { return engine_.poll(pending_); }
  void wait(Deadline deadline) override { engine_.wait(pending_, deadline); }

 private:
  tcp::Engine& engine_;
  P pending_;
};

}  // namespace

std::unique_ptr<tcp::Engine> make_tcp_engine(Store& store, const TcpOptions& options,
                                             Deadline deadline) {
  std::string interface = options.interface;
  if (interface.empty()) interface = process_env()("LOCKSTEP_INTERFACE").value_or("");
  return std::make_unique<tcp::Engine>(
      tcp::connect_mesh(store, {options.rank, options.size, options.one_host, interface}, deadline),
      options.rank, options.sizes);
}

TcpBackend::TcpBackend(std::unique_ptr<tcp::Engine> engine)
    : capabilities_(rounds::engine_capabilities()),
      engine_(std::move(engine)),
      everybody_(static_cast<size_t>(engine_->size())) {
  std::iota(everybody_.begin(), everybody_.end(), 0);
  capabilities_.backend = "tcp";
  capabilities_.authenticated = true;
  capabilities_.processes = true;
}

TcpBackend::~TcpBackend() = default;

std::unique_ptr<Request> TcpBackend::start(const Call& call) {
  if (call.op == Op::kSend || call.op == Op::kRecv) {
    auto message = engine_->message(call);
    engine_->progress();
    return std::make_unique<TcpRequest<TcpMessage>>(*engine_, std::move(message));
  }
  auto exchange = engine_->exchange(call, engine_->enter(call), everybody_, /*phase=*/0);
  engine_->progress();
  return std::make_unique<TcpRequest<TcpCollective>>(*engine_, call, std::move(exchange));
}

void TcpBackend::progress() {
  engine_->progress();
}

void TcpBackend::set_siblings(SiblingProgress* siblings) {
  engine_->set_siblings(siblings);
}

bool TcpBackend::lost(int rank) const {
  return engine_->lost(rank);
}

Probe TcpBackend::probe(int src, int tag) {
  return engine_->probe(src, tag);
}

void TcpBackend::abort(const Breakage& why) noexcept {
  engine_->abort(why);
}

void TcpBackend::interrupt(const Breakage& why) noexcept {
  engine_->interrupt(why);
}

uint64_t TcpBackend::payload_sent(int peer) const {
  return engine_->payload_sent(peer);
}

std::unique_ptr<TcpBackend> make_tcp_backend(Store& store, const TcpOptions& options,
                                             Deadline deadline) {
  return std::make_unique<TcpBackend>(make_tcp_engine(store, options, deadline));
}

}  // namespace lockstep::inline v0
