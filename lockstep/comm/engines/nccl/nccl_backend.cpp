#include "lockstep/comm/engines/nccl/nccl_backend.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/Event.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sched.h>

#include <atomic>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "lockstep/comm/engines/nccl/nccl_calls.h"
#include "lockstep/comm/engines/nccl/nccl_library.h"
#include "lockstep/comm/engines/nccl/nccl_link.h"
#include "lockstep/core/env.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/device/graph.h"

namespace lockstep::inline v0 {
namespace {

constexpr int kNcclYields = 1000;                      // looks at the device before the first sleep
constexpr auto kNcclStart = std::chrono::seconds(60);  // the time in which NCCL must accept a call
constexpr auto kNcclEnd = std::chrono::seconds(2);  // the time in which cancelled kernels must end
// Between looks for ranks that cannot join.
constexpr auto kNcclMeet = std::chrono::milliseconds(100);

// The target of Call::after.
class NcclTail final : public Tail {
 public:
  explicit NcclTail(std::shared_ptr<const c10::Event> done) : done_(std::move(done)) {}
  bool over() noexcept override {
    try {
      return !device::captures_here() && done_->query();
    } catch (const std::exception&) {  // CUDA has failed
      return false;
    }
  }

 private:
  std::shared_ptr<const c10::Event> done_;
};

class NcclBackend final : public Backend, public DeviceOrder {
 public:
  NcclBackend(std::shared_ptr<const nccl::Library> library, std::shared_ptr<Store> store,
              c10::Device device, const NcclOptions& options)
      : capabilities_(nccl::capabilities_on(device)),
        nccl_(std::move(library)),
        store_(std::move(store)),
        device_(device),
        rank_(options.rank),
        size_(options.size),
        word_(at::zeros({1}, at::TensorOptions().dtype(at::kByte).device(device))) {
    const c10::DeviceGuard guard(device_);
    if (nccl_->cuda.stream_create_with_flags(&stream_, nccl::kNonBlocking) != 0)
      throw LaunchError("CUDA made no stream on " + device.str());
  }

  ~NcclBackend() override {
    // ncclCommDestroy would wait for the peers.
    end_comm();
    if (stream_ != nullptr) nccl_->cuda.stream_destroy(stream_);
  }

  void connect(const nccl::UniqueId& id, Deadline deadline) {
    const c10::DeviceGuard guard(device_);
    store_->set(here(rank_), "1");
    nccl::Config config;
    nccl::Result result = nccl_->call.comm_init_rank_config(&comm_, size_, id, rank_, &config);
    const std::string text = "connecting the ranks over nccl";
    for (Deadline look = Deadline::after(kNcclMeet); result == nccl::kInProgress;) {
      if (look.expired()) {
        look = Deadline::after(kNcclMeet);
        store_->try_get(here(rank_));  // throws if another rank has reported that it cannot
      }
      if (deadline.expired())
        throw Timeout(text + " took longer than " + seconds_of(deadline) + whom_it_lacks());
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
      nccl_->call.comm_get_async_error(comm_, &result);
    }
    if (result != nccl::kSuccess) fail(text + " on rank " + std::to_string(rank_), result);
    store_->remove(here(rank_));  // a job that keeps making groups must not fill its store
  }

  const Capabilities& capabilities() const override { return capabilities_; }

  DeviceOrder* device_order() override { return this; }
  std::shared_ptr<void> mark() override {
    const c10::DeviceGuard guard(device_);
    auto mark = std::make_shared<nccl::NcclMark>();
    if (const device::Capture* capture = device::capture_of(current_stream()))
      mark->capture = capture->id();
    mark->event.record(current_stream());
    return mark;
  }

  bool captures() const override { return true; }
  std::shared_ptr<void> mark_replay() override {
    auto mark = std::make_shared<nccl::NcclMark>();
    mark->replay = true;
    return mark;
  }
  void replayed(const std::shared_ptr<void>& mark) override {
    const c10::DeviceGuard guard(device_);
    auto& replay = *static_cast<nccl::NcclMark*>(mark.get());
    replay.event.record(current_stream());
    replay.given = true;
  }

  std::unique_ptr<Request> start(const Call& call) override {
    const std::string text = "#" + std::to_string(call.sequence) + " " + describe(call) +
                             " over nccl on rank " + std::to_string(rank_);
    if (call.op == Op::kSend || call.op == Op::kRecv) {
      nccl::Link& link = link_of(call);
      std::shared_ptr<nccl::Message> message = link.add(call, text);
      return std::make_unique<MessageRequest>(*this, link, std::move(message));
    }
    const c10::DeviceGuard guard(device_);
    const auto before = std::static_pointer_cast<nccl::NcclMark>(call.after);
    if (before && before->replay) return std::make_unique<NcclRequest>(*this, before, text);
    // The ranks agreed on the call after its capture had been abandoned.
    if (before && before->capture != 0 && !device::is_under_way(before->capture))
      return std::make_unique<NcclRequest>(*this, before, text);
    if (before && !comes_after(*before)) return std::make_unique<NcclRequest>(*this, before, text);
    captured_ = captured_ || (before && before->capture != 0);
    settle(
        nccl::submit(call, {nccl_->call, comm_, stream_, rank_, size_, word_.mutable_data_ptr()}),
        text);
    auto done = std::make_shared<nccl::NcclMark>();
    done->capture = before ? before->capture : 0;
    done->given = true;
    done->event.record(nccl::as_stream(stream_, device_));
    return std::make_unique<NcclRequest>(*this, std::move(done), text);
  }

  // The device makes progress by itself, except for messages between ranks that are not connected
  // yet.
  void progress() override {
    for (auto& [ends, link] : links_) link->advance();
  }

  void abort(const Breakage&) noexcept override {
    // This also ends this rank's kernels that wait for peers.
    end_comm();
    for (auto& [ends, link] : links_) link->abort();
  }

 private:
  class NcclRequest final : public Request {
   public:
    NcclRequest(NcclBackend& backend, std::shared_ptr<nccl::NcclMark> done, std::string text)
        : backend_(backend), done_(std::move(done)), text_(std::move(text)) {}

    bool poll() override {
      if (done_->capture != 0) return true;
      // A capturing thread must not query events; the watch's thread does.
      if (done_->given && !device::captures_here() && done_->event.query()) return true;
      backend_.check_async(text_);
      return false;
    }

    void wait(Deadline deadline) override {
      wait_until([this] { return poll(); }, text_, deadline);
    }

    std::shared_ptr<Tail> order(Deadline) override {
      backend_.check_async(text_);
      // No wait exists for an operation of an abandoned capture.
      if (done_->capture != 0 && !device::is_under_way(done_->capture)) return nullptr;
      if (!done_->given && done_->capture == 0) return nullptr;
      const c10::DeviceGuard guard(backend_.device_);
      if (!done_->replay) done_->event.block(backend_.current_stream());
      if (done_->capture != 0) return nullptr;
      return std::make_shared<NcclTail>(std::shared_ptr<const c10::Event>(done_, &done_->event));
    }

   private:
    NcclBackend& backend_;
    std::shared_ptr<nccl::NcclMark> done_;
    std::string text_;
  };

  class MessageRequest final : public Request {
   public:
    MessageRequest(NcclBackend& backend, nccl::Link& link, std::shared_ptr<nccl::Message> message)
        : backend_(backend), link_(link), message_(std::move(message)) {}

    bool poll() override {
      if (!submitted()) return false;
      if (!device::captures_here() && message_->done->query()) return true;
      link_.advance();
      link_.check();
      return false;
    }

    void wait(Deadline deadline) override {
      wait_until([this] { return poll(); }, message_->text, deadline);
    }

    std::shared_ptr<Tail> order(Deadline deadline) override {
      wait_until([this] { return submitted(); }, message_->text, deadline);
      const c10::DeviceGuard guard(backend_.device_);
      message_->done->block(backend_.current_stream());
      return std::make_shared<NcclTail>(message_->done);
    }

   private:
    // Whether the device has been given it. The other rank may first need messages of this one to
    // arrive.
    bool submitted() {
      if (message_->done) return true;
      backend_.progress();
      if (message_->done) return true;
      link_.check();
      return false;
    }

    NcclBackend& backend_;
    nccl::Link& link_;
    std::shared_ptr<nccl::Message> message_;
  };

  template <typename Condition>
  static void wait_until(const Condition& holds, const std::string& text, Deadline deadline) {
    for (int look = 0; !holds(); ++look) {
      if (look < kNcclYields) {
        ::sched_yield();
        continue;
      }
      if (deadline.expired()) {
        throw Timeout(text + " waited " + seconds_of(deadline) +
                      "; a rank is late, or called something else");
      }
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  // Ends its running kernels at once. Never waits long.
  void end_comm() noexcept {
    if (comm_ == nullptr) return;
    nccl::Comm const comm = std::exchange(comm_, nullptr);
    if (!captured_) {
      nccl_->call.comm_abort(comm);
      return;
    }
    // NCCL returns only after the graphs that contain the communicator's calls are destroyed; they
    // may outlive this object, or belong to this thread.
    try {
      std::thread([library = nccl_, comm, device = device_] {
        const c10::DeviceGuard guard(device);
        library->call.comm_abort(comm);
      }).detach();
      await_stream();
    } catch (const std::exception&) {  // no thread could be started: the communicator is leaked
    }
  }

  // Waits until its kernels have ended, because their memory is returned next.
  void await_stream() {
    if (device::anybody_captures()) return;
    const c10::DeviceGuard guard(device_);
    c10::Event end(c10::DeviceType::CUDA);
    end.record(nccl::as_stream(stream_, device_));
    for (const Deadline deadline = Deadline::after(kNcclEnd); !deadline.expired() && !end.query();)
      std::this_thread::sleep_for(std::chrono::microseconds(50));
  }

  // Orders the stream's next work after the computation of the input. Returns false if that belongs
  // to a capture that has been ended; the device reports this to the capturing code.
  bool comes_after(const nccl::NcclMark& before) {
    try {
      before.event.block(nccl::as_stream(stream_, device_));
    } catch (const c10::Error&) {
      if (before.capture == 0) throw;
      return false;
    }
    return true;
  }

  nccl::Link& link_of(const Call& call) {
    const bool sends = call.op == Op::kSend;
    const auto [from, to] = sends ? std::pair(rank_, call.peer) : std::pair(call.peer, rank_);
    std::unique_ptr<nccl::Link>& link = links_[{from, to}];
    if (!link && from == to)
      link = std::make_unique<nccl::OwnLink>(nccl_, device_);
    else if (!link)
      link = std::make_unique<nccl::NcclLink>(
          nccl_, store_, "from " + std::to_string(from) + " to " + std::to_string(to), device_,
          sends);
    return *link;
  }

  c10::Stream current_stream() const {
    return c10::impl::VirtualGuardImpl(c10::DeviceType::CUDA).getStream(device_);
  }

  static std::string here(int rank) { return "here/" + std::to_string(rank); }
  static std::string seconds_of(Deadline deadline) {
    return std::to_string(deadline.timeout_seconds()) + " s";
  }

  // Names the ranks that have not connected.
  std::string whom_it_lacks() {
    std::vector<int> missing;
    for (int r = 0; r < size_; ++r) {
      if (!store_->try_get(here(r))) missing.push_back(r);
    }
    return missing.empty() ? "; all ranks are there, and NCCL_DEBUG=INFO says what they wait for"
                           : "; not arrived: rank " + joined(missing);
  }

  [[noreturn]] void fail(const std::string& text, nccl::Result result) const {
    throw PeerLost(text + " failed: " + nccl_->call.error_string(result), -1);
  }

  // The communicator does not block: a call that has to wait returns kInProgress.
  void settle(nccl::Result result, const std::string& text) {
    const Deadline deadline = Deadline::after(kNcclStart);
    while (result == nccl::kInProgress) {
      if (deadline.expired())
        throw Timeout(text + " was not taken by NCCL within " + seconds_of(deadline));
      ::sched_yield();
      nccl_->call.comm_get_async_error(comm_, &result);
    }
    if (result != nccl::kSuccess) fail(text, result);
  }

  void check_async(const std::string& text) const {
    if (comm_ == nullptr) throw PeerLost(text + ": the communicator was aborted", rank_);
    nccl::Result result = nccl::kSuccess;
    nccl_->call.comm_get_async_error(comm_, &result);
    if (result != nccl::kSuccess && result != nccl::kInProgress)
      throw PeerLost(text + " failed: " + nccl_->call.error_string(result) + "; a rank is gone",
                     -1);
  }

  Capabilities capabilities_;
  std::shared_ptr<const nccl::Library> nccl_;
  std::shared_ptr<Store> store_;
  c10::Device device_;
  int rank_;
  int size_;
  at::Tensor word_;  // for barriers
  nccl::Comm comm_ = nullptr;
  bool captured_ = false;  // existing graphs may contain calls of comm_
  nccl::Stream stream_ = nullptr;
  std::map<std::pair<int, int>, std::unique_ptr<nccl::Link>> links_;  // by sender and receiver
};

}  // namespace

std::unique_ptr<Backend> make_nccl_backend(std::shared_ptr<Store> store, const NcclOptions& options,
                                           Deadline deadline) {
  if (c10::impl::device_guard_impl_registry[static_cast<size_t>(c10::DeviceType::CUDA)].load() ==
      nullptr) {
    throw LaunchError(
        "backend nccl needs a CUDA build of libtorch, and this program is linked with a CPU one "
        "(scripts/quickstart --cuda)");
  }
  const c10::impl::VirtualGuardImpl cuda(c10::DeviceType::CUDA);
  if (options.device >= cuda.deviceCount()) {
    throw LaunchError("backend nccl: rank " + std::to_string(options.rank) + " wants CUDA device " +
                      std::to_string(options.device) + ", but there are " +
                      std::to_string(cuda.deviceCount()) +
                      "; start no more ranks a host than that, or, where each rank sees a device "
                      "of its own, set LOCKSTEP_DEVICE=cuda");
  }
  auto library = std::make_shared<const nccl::Library>(
      process_env()("LOCKSTEP_NCCL").value_or("libnccl.so.2"));
  nccl::UniqueId id{};
  if (options.rank == 0) {
    if (library->call.get_unique_id(&id) != nccl::kSuccess)
      throw LaunchError("ncclGetUniqueId failed; NCCL_DEBUG=INFO says why");
    store->set("nccl", std::string(id.bytes, sizeof id.bytes));
  } else {
    const std::string text = store->get("nccl", deadline);
    if (text.size() != sizeof id.bytes) throw StoreError("rank 0 published no NCCL id");
    std::memcpy(id.bytes, text.data(), sizeof id.bytes);
  }
  auto backend = std::make_unique<NcclBackend>(
      std::move(library), std::move(store),
      c10::Device(c10::DeviceType::CUDA, static_cast<c10::DeviceIndex>(options.device)), options);
  backend->connect(id, deadline);
  return backend;
}

}  // namespace lockstep::inline v0
