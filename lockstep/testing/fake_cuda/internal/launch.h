// Launch: an operation on a stream, from its call to its end. Not a public header.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Storage.h>

#include <string>
#include <vector>

#include "lockstep/testing/fake_cuda/internal/capture.h"
#include "lockstep/testing/fake_cuda/internal/history.h"
#include "lockstep/testing/fake_cuda/internal/machine.h"

namespace lockstep::inline v0::testing::fake {

// The memory that an operation may touch is open from start() to the end of this object.
class Launch {
 public:
  Launch(std::string operation, StreamSlot stream);
  ~Launch();
  Launch(const Launch&) = delete;
  Launch& operator=(const Launch&) = delete;

  // Which memory it reads and writes; what is no device's is passed over.
  void reads(const at::Tensor& tensor) { uses(tensor, false); }
  void writes(const at::Tensor& tensor) { uses(tensor, true); }
  void reads(const void* data, size_t bytes) { uses(data, bytes, false); }
  void writes(const void* data, size_t bytes) { uses(data, bytes, true); }
  void uses(Block& block, std::vector<ByteRange> bytes, bool write);
  // Opened, though what it does there does not matter: memory just made.
  void touches(const void* data);

  // Compares it with what came before, and notes races. `late`: it ends later, and its caller opens
  // and closes the memory (open()), and says when (Timeline::end_late).
  void start(bool late = false);
  // The same for what is captured and does not run now.
  void start_captured();
  // That the stream belongs to, or null.
  const CapturePtr& capture() const { return capture_; }
  // What was touched, opened and closed around work that runs elsewhere.
  const std::vector<Block*>& blocks() const { return blocks_; }
  const Moment& moment() const { return moment_; }
  const PlacePtr& place() const { return place_; }
  StreamSlot stream() const { return stream_; }

 private:
  struct Use {
    Block* block;
    std::vector<ByteRange> bytes;
    bool write;
  };
  void uses(const at::Tensor& tensor, bool write);
  void uses(const void* data, size_t bytes, bool write);

  void capture(bool runs);
  void compare();

  std::string operation_;
  StreamSlot stream_;
  CapturePtr capture_;
  std::vector<Use> uses_;
  std::vector<Block*> blocks_;
  Moment moment_;
  PlacePtr place_;
  bool open_ = false;
};

// The bytes of a tensor in its block, as far as they lie apart: at most some hundred pieces, the
// first ones of a tensor that has more.
std::vector<ByteRange> byte_ranges(at::IntArrayRef sizes, at::IntArrayRef strides, size_t item,
                                   size_t begin);

}  // namespace lockstep::inline v0::testing::fake
