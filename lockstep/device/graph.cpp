#include "lockstep/device/graph.h"

#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <torch/version.h>

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/core/errors.h"
#include "lockstep/core/mutex.h"
#include "lockstep/device/current.h"
#include "lockstep/device/internal/device_graph.h"
#include "lockstep/device/internal/guard.h"
#include "lockstep/device/stream.h"

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
#include <ATen/core/GraphImplInterface.h>
#define LOCKSTEP_TORCH_GRAPHS 1
#endif

namespace lockstep::inline v0::device {
namespace {

class UnderWay final : public Capture {
 public:
  uint64_t id() const override { return id_; }
  void add(ReplayPart part) override {
    const MutexLock lock(mutex_);
    parts_.push_back(std::move(part));
  }
  bool updates() const override {
    const MutexLock lock(mutex_);
    return std::any_of(parts_.begin(), parts_.end(), [](const auto& part) { return part.updates; });
  }
  void keep(const at::Tensor& tensor) override {
    const MutexLock lock(mutex_);
    kept_.push_back(tensor);
  }
  std::vector<ReplayPart> take_parts() {
    const MutexLock lock(mutex_);
    kept_.clear();
    return std::exchange(parts_, {});
  }

 private:
  static uint64_t next() {
    static std::atomic<uint64_t> last{0};
    return ++last;
  }

  const uint64_t id_ = next();
  mutable Mutex mutex_;
  std::vector<ReplayPart> parts_ LOCKSTEP_GUARDED_BY(mutex_);
  std::vector<at::Tensor> kept_ LOCKSTEP_GUARDED_BY(mutex_);
};

// The captures of this process, one per device.
struct AllCaptures {
  Mutex mutex;
  std::map<std::pair<c10::DeviceType, c10::DeviceIndex>, UnderWay*> by_device
      LOCKSTEP_GUARDED_BY(mutex);
  std::atomic<int> count{0};
};
AllCaptures& all_captures() {
  static auto* const all = new AllCaptures;  // never destroyed: threads may outlive main()
  return *all;
}

thread_local bool captures_now = false;

}  // namespace

bool anybody_captures() noexcept {
  return all_captures().count.load(std::memory_order_relaxed) != 0;
}

bool captures_here() noexcept {
  return captures_now;
}

bool is_under_way(uint64_t capture) noexcept {
  AllCaptures& all = all_captures();
  const MutexLock lock(all.mutex);
  return std::any_of(all.by_device.begin(), all.by_device.end(),
                     [capture](const auto& one) { return one.second->id() == capture; });
}

namespace {

#ifdef LOCKSTEP_TORCH_GRAPHS
// Graphs that libtorch, or a test's fake device, has registered.
class TorchGraph final : public internal::DeviceGraph {
 public:
  explicit TorchGraph(c10::DeviceType type) : graph_(at::create_graph_impl(type)) {}
  void begin() override { graph_->capture_begin({0, 0}, at::GraphCaptureMode::ThreadLocal); }
  void end() override { graph_->capture_end(); }  // also makes the executable graph
  void replay() override { graph_->replay(); }

 private:
  std::unique_ptr<at::GraphImplInterface> graph_;
};
#endif

bool has_torch_graphs([[maybe_unused]] c10::DeviceType type) {
#ifdef LOCKSTEP_TORCH_GRAPHS
  return at::has_graph_impl(type);
#else
  return false;
#endif
}

// Called only if why_no_graphs() is empty.
std::unique_ptr<internal::DeviceGraph> make_device_graph([[maybe_unused]] c10::DeviceType type) {
#ifdef LOCKSTEP_TORCH_GRAPHS
  if (at::has_graph_impl(type)) return std::make_unique<TorchGraph>(type);
#endif
#ifdef LOCKSTEP_CUDA_GRAPHS
  return internal::make_cuda_graph();
#else
  return nullptr;
#endif
}

bool is_captured([[maybe_unused]] const c10::Stream& stream) {
#if defined(LOCKSTEP_TORCH_GRAPHS)
  return stream.is_capturing();
#elif defined(LOCKSTEP_CUDA_GRAPHS)
  return stream.device_type() == c10::DeviceType::CUDA && internal::is_captured_by_cuda(stream);
#else
  return false;
#endif
}

}  // namespace

std::string why_no_graphs(c10::Device device) {
  internal::guard_of(device);
  if (has_torch_graphs(device.type())) return "";
  if (device.type() != c10::DeviceType::CUDA)
    return device.str() + ": libtorch " TORCH_VERSION " has no graphs for such devices";
#ifdef LOCKSTEP_CUDA_GRAPHS
  const std::string why = internal::why_no_cuda_graphs();
  return why.empty() ? "" : device.str() + ": " + why;
#else
  return device.str() +
         ": Lockstep was compiled without CUDA's headers, which CUDA graphs need "
         "(docs/building.md)";
#endif
}

Capture* capture_of(const c10::Stream& stream) {
  if (!anybody_captures() || stream.device().is_cpu() || !is_captured(stream)) return nullptr;
  AllCaptures& all = all_captures();
  const MutexLock lock(all.mutex);
  const auto found = all.by_device.find({stream.device_type(), stream.device_index()});
  if (found == all.by_device.end())
    throw InvalidArgument("the current stream of " + stream.device().str() +
                          " is captured, but not by lockstep::device::Graph");
  return found->second;
}

class Graph::Impl {
 public:
  explicit Impl(c10::Device device) : device_(internal::numbered(device)) { renew(); }

  void capture(const std::function<void()>& work) {
    const c10::DeviceGuard guard(device_);
    const c10::Stream stream = current_stream(device_);
    if (stream.id() == internal::guard_of(device_).getDefaultStream(device_).id())
      throw InvalidArgument(
          "a graph is captured on a stream beside the default one: make another the current one "
          "first (c10::StreamGuard on device::side_stream())");
    synchronize(device_);
    UnderWay under_way;
    std::exception_ptr failure;
    {
      const Entry entry(device_, under_way);
      try {
        graph_->begin();
      } catch (...) {
        renew();
        throw;
      }
      try {
        work();
      } catch (...) {
        failure = std::current_exception();
      }
      try {
        const c10::StreamGuard same(stream);
        graph_->end();
      } catch (const std::exception&) {
        // The exception of the work says more.
        if (!failure) failure = std::current_exception();
      }
    }
    parts_ = under_way.take_parts();
    if (!failure) return;
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part)
      if (part->undo) part->undo();
    parts_.clear();
    renew();
    std::rethrow_exception(failure);
  }

  void replay() {
    const c10::DeviceGuard guard(device_);
    const bool first = std::exchange(first_, false);
    size_t begun = 0;
    try {
      for (; begun < parts_.size(); ++begun)
        if (parts_[begun].before) parts_[begun].before(first);
      for (const ReplayPart& part : parts_)
        if (part.start) part.start();
      for (const ReplayPart& part : parts_)
        if (part.meet) part.meet();
      graph_->replay();
    } catch (...) {
      // On the first replay, the host's work during the capture must be undone for all parts.
      for (size_t i = first ? parts_.size() : std::min(begun + 1, parts_.size()); i-- > 0;)
        if (parts_[i].cancel) parts_[i].cancel();
      throw;
    }
    std::exception_ptr failure;
    for (const ReplayPart& part : parts_) {
      try {
        if (part.after) part.after();
      } catch (...) {
        if (!failure) failure = std::current_exception();
      }
    }
    if (failure) std::rethrow_exception(failure);
  }

 private:
  // Registers the capture for capture_of().
  class Entry {
   public:
    Entry(c10::Device device, UnderWay& under_way) : device_(device.type(), device.index()) {
      AllCaptures& all = all_captures();
      const MutexLock lock(all.mutex);
      if (!all.by_device.emplace(device_, &under_way).second)
        throw InvalidArgument("another thread captures a graph on " + device.str() +
                              "; one at a time");
      ++all.count;
      captures_now = true;
    }
    ~Entry() {
      AllCaptures& all = all_captures();
      const MutexLock lock(all.mutex);
      all.by_device.erase(device_);
      --all.count;
      captures_now = false;
    }
    Entry(const Entry&) = delete;
    Entry& operator=(const Entry&) = delete;

   private:
    std::pair<c10::DeviceType, c10::DeviceIndex> device_;
  };

  void renew() { graph_ = make_device_graph(device_.type()); }

  c10::Device device_;
  std::unique_ptr<internal::DeviceGraph> graph_;
  std::vector<ReplayPart> parts_;
  bool first_ = true;
};

Graph::Graph(c10::Device device) {
  if (const std::string why = why_no_graphs(device); !why.empty())
    throw InvalidArgument("no graph can be captured on " + why);
  impl_ = std::make_unique<Impl>(device);
}
Graph::~Graph() = default;

void Graph::capture(const std::function<void()>& work) {
  if (captured_) throw InvalidArgument("the graph has been captured already");
  impl_->capture(work);
  captured_ = true;
}

void Graph::replay() {
  if (!captured_) throw InvalidArgument("the graph has not been captured");
  impl_->replay();
}

}  // namespace lockstep::inline v0::device
