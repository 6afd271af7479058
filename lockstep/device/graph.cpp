#include "lockstep/device/graph.h"

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
#include "lockstep/device/internal/guard.h"
#include "lockstep/device/stream.h"

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
#include <ATen/core/GraphImplInterface.h>
#define LOCKSTEP_DEVICE_GRAPHS 1
#endif

namespace lockstep::device {
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

// Captures of this process, one a device.
struct AllCaptures {
  Mutex mutex;
  std::map<c10::DeviceIndex, UnderWay*> by_device LOCKSTEP_GUARDED_BY(mutex);
  std::atomic<int> count{0};
};
AllCaptures& all_captures() {
  static auto* const all = new AllCaptures;  // threads may outlive main()
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

#ifdef LOCKSTEP_DEVICE_GRAPHS

std::string why_no_graphs(c10::Device device) {
  internal::guard_of(device);
  if (!at::has_graph_impl(device.type()))
    return device.str() + ": libtorch has no graphs for such devices";
  return "";
}

Capture* capture_of(const c10::Stream& stream) {
  if (!anybody_captures() || stream.device().is_cpu() || !stream.is_capturing()) return nullptr;
  AllCaptures& all = all_captures();
  const MutexLock lock(all.mutex);
  const auto found = all.by_device.find(stream.device_index());
  if (found == all.by_device.end())
    throw InvalidArgument("the current stream of " + stream.device().str() +
                          " is captured, but not by lockstep::device::Graph");
  return found->second;
}

class Graph::Impl {
 public:
  explicit Impl(c10::Device device) : device_(internal::numbered(device)) { renew(); }

  void capture(const std::function<void()>& work) {
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
      graph_->capture_begin({0, 0}, at::GraphCaptureMode::ThreadLocal);
      try {
        work();
      } catch (...) {
        failure = std::current_exception();
      }
      try {
        const c10::StreamGuard same(stream);
        graph_->capture_end();
      } catch (const std::exception&) {
        // What the work failed with says more.
        if (!failure) failure = std::current_exception();
      }
    }
    parts_ = under_way.take_parts();
    if (!failure) return graph_->instantiate();
    for (auto part = parts_.rbegin(); part != parts_.rend(); ++part)
      if (part->undo) part->undo();
    parts_.clear();
    renew();
    std::rethrow_exception(failure);
  }

  void replay() {
    for (const ReplayPart& part : parts_)
      if (part.before) part.before(first_);
    first_ = false;
    graph_->replay();
    for (const ReplayPart& part : parts_)
      if (part.after) part.after();
  }

 private:
  // What others find by capture_of().
  class Entry {
   public:
    Entry(c10::Device device, UnderWay& under_way) : device_(device.index()) {
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
    c10::DeviceIndex device_;
  };

  void renew() { graph_ = at::create_graph_impl(device_.type()); }

  c10::Device device_;
  std::unique_ptr<at::GraphImplInterface> graph_;
  std::vector<ReplayPart> parts_;
  bool first_ = true;
};

#else

std::string why_no_graphs(c10::Device device) {
  return device.str() + ": libtorch has graphs for C++ from 2.13 on, and this is " TORCH_VERSION;
}

Capture* capture_of(const c10::Stream&) {
  return nullptr;
}

class Graph::Impl {
 public:
  explicit Impl(c10::Device) {}
  void capture(const std::function<void()>&) {}
  void replay() {}
};

#endif

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

}  // namespace lockstep::device
