#include "lockstep/checkpoint/internal/file_to_write.h"

#include <ATen/Parallel.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/from_blob.h>

#include <algorithm>
#include <array>
#include <future>
#include <set>
#include <string_view>
#include <system_error>
#include <utility>

#include "lockstep/checkpoint/mapped_tensor.h"
#include "lockstep/checkpoint/safetensors_header.h"
#include "lockstep/core/aside_file.h"
#include "lockstep/core/check.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/pages.h"

namespace lockstep::inline v0::internal {
namespace {

// The size of one write. A multiple of kDirectAlignment.
constexpr size_t kWritten = 1 << 20;
// So many of them are under way at once: a disk is idle between writes that follow one another. What they are made in
// stays in the caches, from which a disk's driver takes it faster than from memory.
constexpr size_t kUnderWay = 8;
// A smaller file reaches the disk sooner through the page cache.
constexpr size_t kDirectFrom = 1 << 20;
// The size of one copy, if several threads copy.
constexpr size_t kCopied = 1 << 20;

// Throws for tensors that cannot be written.
void put_in_file_order(std::vector<TensorToCome>& tensors) {
  std::set<std::string_view> names;
  for (const TensorToCome& tensor : tensors) {
    if (tensor.name.empty() || tensor.name == "__metadata__") {
      throw InvalidArgument("write_safetensors: '" + tensor.name +
                            "' cannot be the name of a tensor");
    }
    if (safetensors_dtype_name(tensor.dtype) == nullptr) {
      throw InvalidArgument("write_safetensors: tensor '" + tensor.name +
                            "' is undefined, sparse or of a dtype that safetensors lacks");
    }
    if (!names.insert(tensor.name).second)
      throw InvalidArgument("write_safetensors: two tensors have the name '" + tensor.name + "'");
  }
  std::sort(tensors.begin(), tensors.end(), [](const TensorToCome& a, const TensorToCome& b) {
    const auto size_a = c10::elementSize(a.dtype), size_b = c10::elementSize(b.dtype);
    return size_a != size_b ? size_a > size_b : a.name < b.name;
  });
}

size_t bytes_of(const TensorToCome& tensor) {
  return static_cast<size_t>(c10::multiply_integers(tensor.sizes)) * c10::elementSize(tensor.dtype);
}

std::string start_of_file(const std::vector<TensorToCome>& tensors, const Metadata& metadata) {
  SafetensorsHeader header;
  header.metadata = metadata;
  uint64_t offset = 0;
  for (const TensorToCome& tensor : tensors) {
    const uint64_t end = offset + bytes_of(tensor);
    header.entries.push_back({.name = tensor.name,
                              .dtype = safetensors_dtype_name(tensor.dtype),
                              .shape = tensor.sizes,
                              .begin = offset,
                              .end = end});
    offset = end;
  }
  const std::string json = format_safetensors_header(header);
  const uint64_t length = json.size();
  return std::string(reinterpret_cast<const char*>(&length), sizeof length) + json;
}

std::vector<TensorToCome> to_come(const NamedTensors& tensors) {
  std::vector<TensorToCome> list;
  for (const auto& [name, tensor] : tensors) {
    const bool strided = tensor.defined() && tensor.layout() == at::kStrided;
    list.push_back({.name = name,
                    .dtype = strided ? tensor.scalar_type() : at::ScalarType::Undefined,
                    .sizes = strided ? tensor.sizes().vec() : std::vector<int64_t>{},
                    .make = [tensor = tensor] { return tensor; }});
  }
  return list;
}

// With as many bytes as its place in the file.
at::Tensor made(const TensorToCome& tensor) {
  at::Tensor data = tensor.make();
  LOCKSTEP_CHECK(data.nbytes() == bytes_of(tensor), "a tensor has the size that was announced");
  return data;
}

// Whether the tensor's memory equals the file's bytes.
bool as_in_file(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() && !tensor.is_conj() && !tensor.is_neg();
}

void copy_converted(std::byte* to, const at::Tensor& tensor, bool non_blocking = false) {
  at::from_blob(to, tensor.sizes(), at::TensorOptions().dtype(tensor.scalar_type()))
      .copy_(tensor, non_blocking);
}

// Writes pieces of a file, one after another in its order, on other threads.
class PieceWriter {
 public:
  explicit PieceWriter(AsideFile& file) : file_(file) {}

  // Starts to write the next piece. `data` must stay valid until kUnderWay - 1 further calls have returned, or finish().
  void write(const std::byte* data, size_t size) {
    std::future<void>& writing = under_way_[next_];
    const auto work = [this, at = std::exchange(offset_, offset_ + size), data, size] {
      file_.write_direct(at, data, size);
    };
    try {
      writing = std::async(std::launch::async, work);
    } catch (const std::system_error&) {  // no more threads available
      work();
    }
    next_ = (next_ + 1) % kUnderWay;
    if (under_way_[next_].valid()) under_way_[next_].get();
  }
  void finish() {
    for (std::future<void>& writing : under_way_)
      if (writing.valid()) writing.get();
  }

 private:
  AsideFile& file_;
  size_t offset_ = 0;
  size_t next_ = 0;                                     // which holds no piece
  std::array<std::future<void>, kUnderWay> under_way_;  // their destructors wait
};

// The bytes of a file as they arrive: copied to the memory from which the disk takes them.
class StagedFile {
 public:
  StagedFile(AsideFile& file, size_t bytes)
      : file_(file),
        small_(bytes < kDirectFrom),
        memory_(std::min(bytes, kUnderWay * kWritten)),
        writer_(file) {}

  void put(const void* data, size_t size) {
    const char* next = static_cast<const char*>(data);
    while (size > 0) {
      const size_t piece = std::min(size, kWritten - used_);
      sum_.copy(place_ + used_, next, piece, CopyTo::kCaches);
      used_ += piece;
      next += piece;
      size -= piece;
      if (used_ == kWritten) flush();
    }
  }
  FileSum end() {
    flush();
    writer_.finish();
    return sum_.sum();
  }

 private:
  void flush() {
    if (used_ == 0) return;
    if (small_) {
      file_.write(place_, used_);
    } else {
      writer_.write(place_, used_);
      place_ += kWritten;
      if (place_ >= memory_.data() + memory_.bytes()) place_ = memory_.data();
    }
    used_ = 0;
  }

  AsideFile& file_;
  bool small_;
  PageMemory memory_;
  std::byte* place_ = memory_.data();  // of the piece that is being made
  size_t used_ = 0;
  Checksum sum_;
  PieceWriter writer_;  // destroyed first, since it may still read the memory
};

}  // namespace

FileToWrite::FileToWrite(std::vector<TensorToCome> tensors, const Metadata& metadata)
    : tensors_(std::move(tensors)) {
  put_in_file_order(tensors_);
  start_ = start_of_file(tensors_, metadata);
  bytes_ = start_.size();
  for (const TensorToCome& tensor : tensors_) bytes_ += bytes_of(tensor);
}

FileToWrite::FileToWrite(const NamedTensors& tensors, const Metadata& metadata)
    : FileToWrite(to_come(tensors), metadata) {}

void FileToWrite::snapshot(std::byte* memory, at::Device later) {
  const at::NoGradGuard no_grad;
  snapshot_ = memory;
  if (!later.is_cpu() || at::get_num_threads() > 1)
    copy_on_all_threads(later);
  else
    copy_and_sum();
  tensors_.clear();
}

void FileToWrite::copy_from_device() {
  const at::NoGradGuard no_grad;
  // Resolved on the device, without a detour through the host.
  for (const auto& [to, tensor] : coming_)
    copy_converted(to, tensor.resolve_conj().resolve_neg(), /*non_blocking=*/true);
  coming_.clear();
}

void FileToWrite::copy_and_sum() {
  Checksum sum;
  std::byte* next = snapshot_;
  sum.copy(next, start_.data(), start_.size());
  next += start_.size();
  for (const TensorToCome& tensor : tensors_) {
    const at::Tensor data = made(tensor);
    if (as_in_file(data)) {
      sum.copy(next, data.const_data_ptr(), data.nbytes());
    } else {
      copy_converted(next, data);
      sum.update(next, data.nbytes());
    }
    next += data.nbytes();
  }
  sum_ = sum.sum();
}

// A checksum is one thread's work: where other threads could copy meanwhile, they need not wait for
// it.
void FileToWrite::copy_on_all_threads(at::Device later) {
  struct Piece {
    std::byte* to;
    const std::byte* from;
    size_t size;
  };
  std::vector<at::Tensor> held;
  std::vector<Piece> pieces;
  std::byte* next = snapshot_;
  copy_past_caches(next, start_.data(), start_.size());
  next += start_.size();
  for (const TensorToCome& tensor : tensors_) {
    const at::Tensor& data = held.emplace_back(made(tensor));
    const auto* from =
        as_in_file(data) ? static_cast<const std::byte*>(data.const_data_ptr()) : nullptr;
    if (!later.is_cpu() && data.device() == later && data.nbytes() > 0)
      coming_.push_back({next, data});
    else if (from == nullptr && data.nbytes() > 0)
      copy_converted(next, data);
    for (size_t at = 0; from != nullptr && at < data.nbytes(); at += kCopied)
      pieces.push_back({next + at, from + at, std::min(kCopied, data.nbytes() - at)});
    next += data.nbytes();
  }
  at::parallel_for(0, static_cast<int64_t>(pieces.size()), 1, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) {
      const Piece& piece = pieces[static_cast<size_t>(i)];
      copy_past_caches(piece.to, piece.from, piece.size);
    }
  });
}

FileSum FileToWrite::write(AsideFile& file) const {
  return snapshot_ != nullptr ? write_snapshot(file) : write_tensors(file);
}

FileSum FileToWrite::write_snapshot(AsideFile& file) const {
  if (bytes_ < kDirectFrom) {
    file.write(snapshot_, bytes_);
    return sum_ ? *sum_ : checksum_of(snapshot_, bytes_);
  }
  Checksum sum;
  PieceWriter writer(file);
  for (size_t at = 0; at < bytes_; at += kWritten) {
    const size_t piece = std::min(kWritten, bytes_ - at);
    if (!sum_) sum.update(snapshot_ + at, piece);
    writer.write(snapshot_ + at, piece);
  }
  writer.finish();
  return sum_ ? *sum_ : sum.sum();
}

FileSum FileToWrite::write_tensors(AsideFile& file) const {
  const at::NoGradGuard no_grad;
  StagedFile staged(file, bytes_);
  staged.put(start_.data(), start_.size());
  for (const TensorToCome& tensor : tensors_) {
    const at::Tensor data = made(tensor).detach().cpu().resolve_conj().resolve_neg().contiguous();
    staged.put(data.const_data_ptr(), data.nbytes());
  }
  return staged.end();
}

}  // namespace lockstep::inline v0::internal
