#include "lockstep/comm/engines/gloo/gloo_backend.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/from_blob.h>
#include <torch/version.h>
#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <csignal>
#include <cstring>
#include <exception>
#include <functional>
#include <numeric>
#include <optional>
#include <thread>
#include <utility>

#include "lockstep/comm/backend/foreign_capabilities.h"
#include "lockstep/comm/engines/gloo/store_adapter.h"
#include "lockstep/core/check.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/log.h"
#include "lockstep/core/mutex.h"

namespace lockstep::inline v0 {
namespace {

Capabilities gloo_capabilities() {
  Capabilities c = foreign_capabilities("gloo");
  c.deterministic = true;  // one rank reduces each element, in ring order
  c.v_ops[static_cast<int>(Op::kAllToAll)] = true;
  c.move_dtypes = c.reduce_dtypes | bit(at::kHalf);
  return c;
}

c10d::ReduceOp to_c10d(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum:
      return c10d::ReduceOp::SUM;
    case ReduceOp::kProduct:
      return c10d::ReduceOp::PRODUCT;
    case ReduceOp::kMin:
      return c10d::ReduceOp::MIN;
    case ReduceOp::kMax:
      return c10d::ReduceOp::MAX;
    case ReduceOp::kBitAnd:
      return c10d::ReduceOp::BAND;
    case ReduceOp::kBitOr:
      return c10d::ReduceOp::BOR;
    case ReduceOp::kBitXor:
      return c10d::ReduceOp::BXOR;
    case ReduceOp::kAvg:
      break;
  }
  LOCKSTEP_CHECK(false, "averages are composed");
}

// gloo reports the kind of an error only in its text.
[[noreturn]] void rethrow(const std::exception& error, const std::string& call) {
  const std::string text = error.what();
  const std::string line = call + " failed: " + text.substr(0, text.find('\n'));
  const auto says = [&text](const char* word) { return text.find(word) != std::string::npos; };
  if (says("imed out") || says("imeout"))
    throw Timeout(line + "; a rank is late, or called something else");
  throw PeerLost(line + "; a rank is gone", -1);
}

at::Tensor view(const std::byte* data, int64_t count, at::ScalarType dtype) {
  // A null pointer with elements would be an error; without elements any pointer is valid.
  static std::byte nothing;
  auto* memory = const_cast<std::byte*>(data != nullptr ? data : &nothing);
  return at::from_blob(memory, {count}, at::TensorOptions().dtype(dtype));
}

// Memory for a message. gloo, and a thread that waits for it, may still use it when the request,
// the backend and the caller's memory are gone; c10d's work object keeps this copy alive.
at::Tensor own_memory(int64_t count, at::ScalarType dtype) {
  return at::empty({std::max<int64_t>(count, 1)}, at::TensorOptions(dtype)).narrow(0, 0, count);
}

// gloo does not report a peer that dies in the middle of a message. From this size on a message may
// be cut so, and the cost of a waiting thread, which lets the caller watch the peer, is small
// beside the transfer.
constexpr int64_t kGlooLargeMessage = 64 * 1024;

class GlooRequest final : public Request {
 public:
  enum class Kind : uint8_t { kCollective, kMessage, kLargeMessage };

  // `finish` runs after the work has ended. Only it may access the call's memory.
  GlooRequest(c10::intrusive_ptr<c10d::Work> work, std::string call, Kind kind,
              std::function<void()> finish)
      : work_(std::move(work)), call_(std::move(call)), kind_(kind), finish_(std::move(finish)) {}
  ~GlooRequest() override {
    if (waiter_.joinable()) waiter_.detach();
  }

  bool poll() override {
    try {
      if (kind_ == Kind::kCollective) {
        if (!work_->isCompleted()) return false;
        work_->wait();
        finish();
        return true;
      }
      // gloo's messages cannot be tested: their only wait gives up the connection at its time-out.
      // A thread therefore waits for them.
      if (!outcome_) start_waiter();
      if (!outcome_->done.load(std::memory_order_acquire)) return false;
      if (outcome_->error) std::rethrow_exception(outcome_->error);
      finish();
      return true;
    } catch (const std::exception& error) {
      rethrow(error, call_);
    }
  }

  bool waits_again() const override { return kind_ == Kind::kLargeMessage; }

  void wait(Deadline deadline) override {
    try {
      if (kind_ == Kind::kLargeMessage && !outcome_) start_waiter();
      if (!outcome_) {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining());
        work_->wait(std::max(left, std::chrono::milliseconds(1)));
        finish();
        return;
      }
      outcome_->wait(deadline);
      if (outcome_->error) std::rethrow_exception(outcome_->error);
      finish();
    } catch (const std::exception& error) {
      rethrow(error, call_);
    }
  }

 private:
  struct Outcome {
    std::atomic<bool> done{false};
    std::exception_ptr error;  // set before done
    Mutex mutex;
    ConditionVariable changed;

    void set_done() {
      const MutexLock lock(mutex);
      done.store(true, std::memory_order_release);
      changed.notify_all();
    }
    void wait(Deadline deadline) {
      MutexLock lock(mutex);
      while (!done.load(std::memory_order_acquire)) {
        if (deadline.expired()) throw std::runtime_error("timed out");
        changed.wait_until(lock, deadline.time());
      }
    }
  };
  void finish() {
    if (finish_) std::exchange(finish_, nullptr)();
  }
  void start_waiter() {
    outcome_ = std::make_shared<Outcome>();
    waiter_ = std::thread([outcome = outcome_, work = work_] {
      try {
        work->wait();
      } catch (...) {
        outcome->error = std::current_exception();
      }
      outcome->set_done();
    });
  }

  c10::intrusive_ptr<c10d::Work> work_;
  std::string call_;
  Kind kind_;
  std::function<void()> finish_;
  std::shared_ptr<Outcome> outcome_;
  std::thread waiter_;
};

class GlooBackend final : public Backend {
 public:
  GlooBackend(c10::intrusive_ptr<c10d::ProcessGroupGloo> group, const GlooOptions& options)
      : capabilities_(gloo_capabilities()), group_(std::move(group)), options_(options) {}

  const Capabilities& capabilities() const override { return capabilities_; }

  std::unique_ptr<Request> start(const Call& call) override {
    const std::string text =
        "#" + std::to_string(call.sequence) + " " + describe(call) + " over gloo";
    try {
      std::function<void()> finish;
      auto work = submit_alone(call, finish);
      return std::make_unique<GlooRequest>(std::move(work), text, kind_of(call), std::move(finish));
    } catch (const std::exception& error) {
      rethrow(error, text);
    }
  }

  void progress() override {}  // gloo has its own threads

  // gloo has no function for it. The peers notice when the connections close, at the latest when
  // the process exits.
  void abort(const Breakage&) noexcept override {}

 private:
  static GlooRequest::Kind kind_of(const Call& call) {
    if (call.op != Op::kSend && call.op != Op::kRecv) return GlooRequest::Kind::kCollective;
    const int64_t bytes = call.count * static_cast<int64_t>(c10::elementSize(call.dtype));
    return bytes < kGlooLargeMessage ? GlooRequest::Kind::kMessage
                                     : GlooRequest::Kind::kLargeMessage;
  }

  // All groups of a process, those of other ranks and threads too, enter themselves into libtorch's
  // flight recorder when they submit; before 2.13 its list of groups has no lock.
  c10::intrusive_ptr<c10d::Work> submit_alone(const Call& call, std::function<void()>& finish) {
#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13
    static Mutex recorder;
    const MutexLock lock(recorder);
#endif
    return submit(call, finish);
  }

  c10::intrusive_ptr<c10d::Work> submit(const Call& call, std::function<void()>& finish) {
    const int64_t total = std::accumulate(call.counts.begin(), call.counts.end(), int64_t{0});
    const bool empty = call.op != Op::kAllToAll && call.op != Op::kSend && call.op != Op::kRecv &&
                       call.count == 0 && total == 0;
    // gloo has no empty collectives: no rank receives data, but all still meet.
    if (call.op == Op::kBarrier || empty) return group_->barrier();

    const bool is_root = options_.rank == call.root;
    const int64_t part = call.counts.empty() ? call.count : call.counts[options_.rank];
    switch (call.op) {
      case Op::kBroadcast: {
        std::vector<at::Tensor> tensors{view(call.output, call.count, call.dtype)};
        return group_->broadcast(tensors, {.rootRank = call.root});
      }
      case Op::kReduce: {
        at::Tensor tensor = view(call.input, call.count, call.dtype);
        // gloo leaves partial sums in the other ranks' tensors, so they get a copy.
        if (!is_root)
          tensor = tensor.clone();
        else if (call.output != call.input)
          tensor = view(call.output, call.count, call.dtype).copy_(tensor);
        std::vector<at::Tensor> tensors{tensor};
        c10d::ReduceOptions options;
        options.reduceOp = to_c10d(call.reduce);
        options.rootRank = call.root;
        return group_->reduce(tensors, options);
      }
      case Op::kAllReduce: {
        at::Tensor tensor = view(call.output, call.count, call.dtype);
        if (call.output != call.input) tensor.copy_(view(call.input, call.count, call.dtype));
        std::vector<at::Tensor> tensors{tensor};
        c10d::AllreduceOptions options;
        options.reduceOp = to_c10d(call.reduce);
        return group_->allreduce(tensors, options);
      }
      case Op::kGather: {
        std::vector<at::Tensor> inputs{view(call.input, part, call.dtype)};
        std::vector<std::vector<at::Tensor>> outputs;
        if (is_root) outputs.push_back(view(call.output, total, call.dtype).split(part));
        return group_->gather(outputs, inputs, {.rootRank = call.root});
      }
      case Op::kAllGather: {
        at::Tensor output = view(call.output, total, call.dtype);
        at::Tensor input = view(call.input, part, call.dtype);
        return group_->_allgather_base(output, input);
      }
      case Op::kScatter: {
        std::vector<at::Tensor> outputs{view(call.output, part, call.dtype)};
        std::vector<std::vector<at::Tensor>> inputs;
        if (is_root) inputs.push_back(view(call.input, total, call.dtype).split(part));
        c10d::ScatterOptions options;
        options.rootRank = call.root;
        return group_->scatter(outputs, inputs, options);
      }
      case Op::kReduceScatter: {
        // Uses an all_reduce of a copy, as ProcessGroupGloo's own reduce_scatter does, whose work
        // cannot be queried.
        const at::Tensor whole = view(call.input, total, call.dtype).clone();
        const int64_t begin =
            std::accumulate(call.counts.begin(), call.counts.begin() + options_.rank, int64_t{0});
        finish = [from = whole.narrow(0, begin, part), to = view(call.output, part, call.dtype)] {
          to.copy_(from);
        };
        std::vector<at::Tensor> tensors{whole};
        c10d::AllreduceOptions options;
        options.reduceOp = to_c10d(call.reduce);
        return group_->allreduce(tensors, options);
      }
      case Op::kAllToAll: {
        std::vector<int64_t> send_counts = call.counts;
        std::vector<int64_t> recv_counts = call.recv_counts;
        at::Tensor output =
            view(call.output, std::accumulate(recv_counts.begin(), recv_counts.end(), int64_t{0}),
                 call.dtype);
        at::Tensor input = view(call.input, total, call.dtype);
        return group_->alltoall_base(output, input, recv_counts, send_counts);
      }
      case Op::kSend: {
        std::vector<at::Tensor> tensors{own_memory(call.count, call.dtype)};
        tensors[0].copy_(view(call.input, call.count, call.dtype));
        return group_->send(tensors, call.peer, call.tag);
      }
      case Op::kRecv: {
        std::vector<at::Tensor> tensors{own_memory(call.count, call.dtype)};
        finish = [from = tensors[0], to = view(call.output, call.count, call.dtype)] {
          to.copy_(from);
        };
        return group_->recv(tensors, call.peer, call.tag);
      }
      case Op::kBarrier:
        break;
    }
    LOCKSTEP_CHECK(false, "every operation is above");
  }

  Capabilities capabilities_;
  c10::intrusive_ptr<c10d::ProcessGroupGloo> group_;
  GlooOptions options_;
};

}  // namespace

namespace {

// gloo writes to its sockets without MSG_NOSIGNAL, so the death of a peer would kill this process
// silently.
void survive_sigpipe() {
  struct sigaction current{};
  if (::sigaction(SIGPIPE, nullptr, &current) != 0 || current.sa_handler != SIG_DFL) return;
  current.sa_handler = SIG_IGN;
  ::sigaction(SIGPIPE, &current, nullptr);
}

}  // namespace

std::unique_ptr<Backend> make_gloo_backend(std::shared_ptr<Store> store,
                                           const GlooOptions& options) {
  survive_sigpipe();
  auto group_options = c10d::ProcessGroupGloo::Options::create(options.timeout);
  group_options->threads = 1;  // a communicator's collectives run one after another anyway
  const auto adapter = c10::make_intrusive<StoreAdapter>(std::move(store), options.timeout);
  try {
    const auto interface = process_env()("GLOO_SOCKET_IFNAME");
    if (interface) {
      group_options->devices.push_back(
          c10d::ProcessGroupGloo::createDeviceForInterface(*interface));
    } else if (options.one_host) {
      group_options->devices.push_back(
          c10d::ProcessGroupGloo::createDeviceForHostname("127.0.0.1"));
    } else {
      group_options->devices.push_back(c10d::ProcessGroupGloo::createDefaultDevice());
    }
    if (!options.one_host && options.rank == 0) {
      log_warning(
          "backend gloo leaves the loopback interface and does not authenticate its peers: use it "
          "on trusted networks only");
    }
    auto group = c10::make_intrusive<c10d::ProcessGroupGloo>(adapter, options.rank, options.size,
                                                             group_options);
    return std::make_unique<GlooBackend>(std::move(group), options);
  } catch (const Error&) {
    throw;
  } catch (const std::exception& error) {
    constexpr const char* kConnecting = "connecting the ranks over gloo";
    if (adapter->lost()) std::rethrow_exception(adapter->lost());
    // A shortage of this process itself is not a peer's failure.
    const std::string text = error.what();
    for (const int lacking : {EMFILE, ENFILE, ENOBUFS, ENOMEM}) {
      if (text.find(std::strerror(lacking)) != std::string::npos)
        throw system_error(kConnecting, lacking);
    }
    rethrow(error, kConnecting);
  }
}

}  // namespace lockstep::inline v0
