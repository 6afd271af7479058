// libtorch's RPC agent (TensorPipe) as a contender of `lockstep bench rpc`, called from C++: a ScriptCall by a name of ours,
// which the server looks up in place of TorchScript. A program of its own: Lockstep's libraries do not use that agent.
//
// Variants: "shm", the transports and channels that the agent chooses on a host; "uv", its TCP transport alone, without the
// threads that poll.
#include <ATen/Parallel.h>
#include <ATen/core/function_schema.h>
#include <ATen/ops/empty.h>
#include <torch/csrc/distributed/autograd/context/container.h>
#include <torch/csrc/distributed/rpc/request_callback_no_python.h>
#include <torch/csrc/distributed/rpc/rref_context.h>
#include <torch/csrc/distributed/rpc/script_call.h>
#include <torch/csrc/distributed/rpc/script_resp.h>
#include <torch/csrc/distributed/rpc/tensorpipe_agent.h>
#include <torch/csrc/distributed/rpc/torchscript_functions.h>
#include <torch/csrc/distributed/rpc/utils.h>
#include <torch/csrc/jit/mobile/type_parser.h>
#include <unistd.h>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>

#include <optional>

#include "lockstep/bench/rpc_work.h"
#include "lockstep/core/net.h"

namespace lockstep::inline v0::bench {
namespace {

namespace dr = torch::distributed::rpc;
using Stack = std::vector<c10::IValue>;

constexpr int kWorkers = 16;     // threads; what torch.distributed.rpc has by default
constexpr float kTimeout = 300;  // seconds, of a call
constexpr const char* kAdd = "bench.add";
constexpr const char* kTake = "bench.take";

c10::IValue answer(const std::string& name, const Stack& stack) {
  if (name == kAdd) return stack.at(0).toInt() + stack.at(1).toInt();
  const at::Tensor& tensor = stack.at(0).toTensor();
  const auto* data = tensor.const_data_ptr<float>();
  const int64_t n = tensor.numel();
  return static_cast<double>(data[0]) + static_cast<double>(data[n / 2]) +
         static_cast<double>(data[n - 1]);
}

class Callback final : public dr::RequestCallbackNoPython {
 public:
  c10::intrusive_ptr<dr::JitFuture> processScriptCall(
      dr::RpcCommandBase& rpc, const std::vector<c10::Stream>& streams) const override {
    auto& call = static_cast<dr::ScriptCall&>(rpc);
    if (call.hasOp()) return RequestCallbackNoPython::processScriptCall(rpc, streams);
    c10::IValue result = answer(call.qualifiedName().qualifiedName(), call.stackRef());
    return asFuture(dr::ScriptResp(std::move(result)).toMessage());
  }
};

// One of the two agents, while it lives.
class Agent {
 public:
  Agent(const RpcEndpoint& place, c10::intrusive_ptr<c10d::Store> store, int id) {
    at::set_num_threads(1);
    torch::distributed::autograd::DistAutogradContainer::init(static_cast<int16_t>(id));
    const bool uv = place.variant == "uv" || !place.listen.empty();
    using Names = std::optional<std::vector<std::string>>;
    dr::TensorPipeRpcBackendOptions options(kWorkers, uv ? Names({"uv"}) : std::nullopt,
                                            place.listen.empty() ? std::nullopt : Names({"basic"}),
                                            kTimeout, "init://", {}, {});
    agent_ = std::make_shared<dr::TensorPipeAgent>(
        store, id == 0 ? "server" : "client", id, 2, options,
        std::unordered_map<std::string, dr::DeviceMap>{}, std::vector<c10::Device>{},
        std::make_unique<Callback>());
    dr::RpcAgent::setCurrentRpcAgent(agent_);
    agent_->setTypeResolver(std::make_shared<dr::TypeResolver>([](const c10::QualifiedName& name) {
      return c10::StrongTypePtr(nullptr, c10::parseType(name.qualifiedName()));
    }));
    agent_->start();
  }

 private:
  std::shared_ptr<dr::TensorPipeAgent> agent_;
};

c10::intrusive_ptr<c10d::Store> open_store(const HostPort& at, bool serves, uint16_t& port) {
  c10d::TCPStoreOptions options;
  options.port = at.port;
  options.isServer = serves;
  options.waitWorkers = false;
  auto store = c10::make_intrusive<c10d::TCPStore>(at.host, options);
  port = store->getPort();
  return store;
}

class AgentServer final : public RpcServer {
 public:
  explicit AgentServer(const RpcEndpoint& place)
      : host_(place.listen.empty() ? "127.0.0.1" : place.listen),
        store_(open_store({host_, 0}, true, port_)),
        // The agent's constructor waits for the client's, which asks for this address first.
        starting_([this, place] { agent_.emplace(place, store_, 0); }) {}
  ~AgentServer() override { starting_.join(); }
  std::string address() const override { return HostPort{host_, port_}.to_string(); }

 private:
  std::string host_;
  uint16_t port_ = 0;
  c10::intrusive_ptr<c10d::Store> store_;
  std::optional<Agent> agent_;
  std::thread starting_;
};

class AgentCaller final : public RpcCaller {
 public:
  AgentCaller(const RpcEndpoint& place, const std::string& address)
      : agent_(place, open_store(parse_host_port(address), false, port_), 1),
        add_(kAdd, "", {}, {c10::Argument("sum", c10::IntType::get())}),
        take_(kTake, "", {}, {c10::Argument("found", c10::FloatType::get())}) {}

  int64_t add(int64_t a, int64_t b) override {
    const auto future = begin_add(a, b);
    future->waitAndThrow();
    return future->value().toInt();
  }
  int64_t add_many(int64_t first, int64_t n) override {
    std::vector<c10::intrusive_ptr<dr::JitFuture>> futures;
    futures.reserve(static_cast<size_t>(n));
    for (int64_t i = 0; i < n; ++i) futures.push_back(begin_add(first + i, 1));
    int64_t sum = 0;
    for (const auto& future : futures) {
      future->waitAndThrow();
      sum += future->value().toInt();
    }
    return sum;
  }
  void prepare(int64_t elements) override { tensor_ = at::empty({elements}); }
  void fill(float value) override { tensor_.fill_(value); }
  double send() override {
    const auto future = dr::rpcTorchscript("server", c10::QualifiedName(kTake), take_, {tensor_});
    future->waitAndThrow();
    return future->value().toDouble();
  }

 private:
  c10::intrusive_ptr<dr::JitFuture> begin_add(int64_t a, int64_t b) const {
    return dr::rpcTorchscript("server", c10::QualifiedName(kAdd), add_, {a, b});
  }

  uint16_t port_ = 0;
  Agent agent_;
  c10::FunctionSchema add_;
  c10::FunctionSchema take_;
  at::Tensor tensor_;
};

}  // namespace
}  // namespace lockstep::inline v0::bench

int main(int argc, char** argv) {
  using namespace lockstep::bench;
  const int code = run_rpc_process(
      {argv + 1, argv + argc},
      {.serve = [](const RpcEndpoint& place) { return std::make_unique<AgentServer>(place); },
       .connect =
           [](const RpcEndpoint& place, const std::string& address) {
             return std::make_unique<AgentCaller>(place, address);
           }});
  // The agents' shutdown would have each wait for the other.
  ::_exit(code);
}
