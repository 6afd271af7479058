#include "lockstep/bench/rpc_lockstep.h"

#include <ATen/Parallel.h>
#include <ATen/ops/empty.h>

#include <optional>

#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/net.h"
#include "lockstep/core/secret.h"
#include "lockstep/rpc/agent.h"
#include "lockstep/store/tcp_store.h"

namespace lockstep::inline v0::bench {
namespace {

Secret bench_secret() {
  const std::optional<Secret> secret = Secret::from_env(process_env());
  if (!secret) throw InvalidArgument("a process of 'bench rpc' is started by it, not by hand");
  return *secret;
}

std::string numeric_host(const RpcEndpoint& place) {
  return place.listen.empty() ? "127.0.0.1" : place.listen;
}

rpc::Agent join(const char* name, const RpcEndpoint& place, const HostPort& store,
                rpc::Registry registry) {
  at::set_num_threads(1);
  rpc::AgentOptions options;
  options.listen = numeric_host(place);
  options.timeout = std::chrono::minutes(5);
  return rpc::init(name, std::make_shared<TcpStore>(store, bench_secret(), Deadline::seconds(30)),
                   std::move(registry), options);
}

class LockstepServer final : public RpcServer {
 public:
  explicit LockstepServer(const RpcEndpoint& place)
      : store_({numeric_host(place), 0}, bench_secret()),
        agent_(join("server", place, store_.address(), functions(place.variant == "quick"))) {}
  ~LockstepServer() override { agent_.stop(); }
  std::string address() const override { return store_.address().to_string(); }

 private:
  static rpc::Registry functions(bool quick) {
    rpc::Registry registry;
    registry.add("add", [](int64_t a, int64_t b) { return a + b; }, {.quick = quick});
    registry.add("take", [](const at::Tensor& tensor) {
      const auto* data = tensor.const_data_ptr<float>();
      const int64_t n = tensor.numel();
      return static_cast<double>(data[0]) + static_cast<double>(data[n / 2]) +
             static_cast<double>(data[n - 1]);
    });
    return registry;
  }

  TcpStoreServer store_;
  rpc::Agent agent_;
};

class LockstepCaller final : public RpcCaller {
 public:
  // No peer calls it, so it may listen on its own host alone.
  explicit LockstepCaller(const std::string& address)
      : agent_(join("client", {}, parse_host_port(address), {})), server_(agent_.to("server")) {}
  ~LockstepCaller() override { agent_.stop(); }

  int64_t add(int64_t a, int64_t b) override { return server_.rpc_sync<int64_t>("add", a, b); }
  int64_t add_many(int64_t first, int64_t n) override {
    std::vector<rpc::Future<int64_t>> futures;
    futures.reserve(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i)
      futures.push_back(server_.rpc_async<int64_t>("add", first + i, int64_t{1}));
    int64_t sum = 0;
    for (const rpc::Future<int64_t>& future : futures) sum += future.get();
    return sum;
  }
  void prepare(int64_t elements) override { tensor_ = at::empty({elements}); }
  void fill(float value) override { tensor_.fill_(value); }
  double send() override { return server_.rpc_sync<double>("take", tensor_); }

 private:
  rpc::Agent agent_;
  rpc::Destination server_;
  at::Tensor tensor_;
};

}  // namespace

RpcSides lockstep_sides() {
  return {.serve = [](const RpcEndpoint& place) { return std::make_unique<LockstepServer>(place); },
          .connect =
              [](const RpcEndpoint&, const std::string& address) {
                return std::make_unique<LockstepCaller>(address);
              }};
}

}  // namespace lockstep::inline v0::bench
