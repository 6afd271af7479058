// Graphs, as libtorch asks a device for them (from 2.13 on).
#include <torch/version.h>

#include <memory>
#include <string>

#include "lockstep/testing/fake_cuda/internal/capture.h"
#include "lockstep/testing/fake_cuda/internal/devices.h"

#if TORCH_VERSION_MAJOR > 2 || TORCH_VERSION_MINOR >= 13
#include <ATen/core/GraphImplInterface.h>

namespace lockstep::inline v0::testing::fake {
namespace {

CaptureMode mode_of(at::GraphCaptureMode mode) {
  switch (mode) {
    case at::GraphCaptureMode::ThreadLocal:
      return CaptureMode::kThreadLocal;
    case at::GraphCaptureMode::Relaxed:
      return CaptureMode::kRelaxed;
    default:
      return CaptureMode::kGlobal;
  }
}

class FakeGraph final : public at::GraphImplInterface {
 public:
  explicit FakeGraph(const at::GraphImplArgs&) {}
  ~FakeGraph() override { abandon(); }

  void capture_begin(at::MempoolId_t, at::GraphCaptureMode mode) override {
    TORCH_CHECK(capture_ == nullptr,
                "This CUDAGraph instance already owns a captured graph. To capture a new graph, "
                "create a new instance.");
    device_ = current_device();
    capture_ = captures().begin(current_slot(device_), current_stream_id(device_), mode_of(mode));
    under_way_ = true;
  }
  void capture_end() override {
    TORCH_CHECK(under_way_ && current_slot(device_) == capture_->origin(),
                "Capture must end on the same stream it began on.");
    under_way_ = false;
    try {
      captures().end(capture_);
    } catch (...) {
      capture_.reset();
      throw;
    }
  }
  // capture_end() has done it, for a graph that is not kept.
  void instantiate() override {
    TORCH_CHECK(false,
                "instantiate() is intended to be called by the user only when keep_graph=true");
  }
  void replay() override {
    TORCH_CHECK(capture_ != nullptr && !under_way_,
                "Called CUDAGraph::replay without a preceding successful capture.");
    capture_->replay(current_slot(device_));
  }
  void reset() override {
    abandon();
    capture_.reset();
  }
  at::MempoolId_t pool() const override { return {capture_ ? capture_->id() : 0, 0}; }
  void enable_debug_mode() override {}
  void debug_dump(const std::string&) override {}

 private:
  void abandon() noexcept {
    if (!under_way_) return;
    under_way_ = false;
    try {
      captures().end(capture_);
    } catch (const std::exception&) {  // it was to come to nothing
    }
  }

  int device_ = 0;
  bool under_way_ = false;
  CapturePtr capture_;
};

}  // namespace

void register_graphs() {
  at::GraphImplRegistry()->Register(
      c10::DeviceTypeName(c10::DeviceType::CUDA, /*lower_case=*/false),
      [](const at::GraphImplArgs& args) -> std::unique_ptr<at::GraphImplInterface> {
        return std::make_unique<FakeGraph>(args);
      });
}

}  // namespace lockstep::inline v0::testing::fake
#else
namespace lockstep::inline v0::testing::fake {
void register_graphs() {}
}  // namespace lockstep::inline v0::testing::fake
#endif
