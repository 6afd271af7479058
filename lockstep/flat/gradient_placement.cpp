#include "lockstep/flat/gradient_placement.h"

#include <c10/core/CPUAllocator.h>

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "lockstep/core/check.h"
#include "lockstep/flat/internal/placing_allocator.h"

namespace lockstep::inline v0::flat {
namespace {

constexpr size_t kNone = ~size_t{0};
// The number of remembered allocations of one backward; a thread that is watched for longer,
// because its backward threw, remembers no more.
constexpr size_t kLogged = 1u << 16;

}  // namespace

// Maps a backward's allocations to the gradients that they become.
class GradientPlacement::Plan final : public internal::AllocationWatch {
 public:
  explicit Plan(std::vector<size_t> bytes) : gradients_(bytes.size()) {
    for (size_t i = 0; i < bytes.size(); ++i) {
      gradients_[i].bytes = bytes[i];
      if (bytes[i] > 0) sizes_[bytes[i]];
    }
  }

  bool wants(size_t bytes) const override { return sizes_.contains(bytes); }

  std::shared_ptr<internal::Place> place(size_t bytes) override {
    const Size& size = sizes_.at(bytes);
    const size_t owner = size.count < size.owners.size() ? size.owners[size.count] : kNone;
    if (owner == kNone) return nullptr;
    const Gradient& gradient = gradients_[owner];
    if (!gradient.awaited || !gradient.place || gradient.place->lent) return nullptr;
    return gradient.place;
  }

  void allocated(size_t bytes, const void* memory) override {
    Size& size = sizes_.at(bytes);
    if (log_.size() == kLogged) log_.clear();
    log_.push_back({memory, bytes, size.count++});
  }

  void begin() {
    for (auto& [bytes, size] : sizes_) size.count = 0;
    for (Gradient& gradient : gradients_) gradient.awaited = false;
    log_.clear();
  }

  void expect(size_t index, bool awaited) {
    Gradient& gradient = gradients_.at(index);
    gradient.awaited = awaited && gradient.bytes > 0;
  }

  void learn(size_t index, const at::Tensor& tensor) {
    Gradient& gradient = gradients_[index];
    gradient.awaited = false;
    if (gradient.bytes == 0 || !tensor.defined() || !tensor.has_storage() ||
        tensor.storage_offset() != 0)
      return;
    // The latest one, because memory is reused.
    const void* memory = tensor.storage().data();
    const auto found = std::find_if(log_.rbegin(), log_.rend(), [&](const Allocation& one) {
      return one.memory == memory && one.bytes == gradient.bytes;
    });
    if (found == log_.rend() || found->ordinal == gradient.ordinal) return;
    std::vector<size_t>& owners = sizes_.at(gradient.bytes).owners;
    if (gradient.ordinal != kNone) owners[gradient.ordinal] = kNone;
    if (owners.size() <= found->ordinal) owners.resize(found->ordinal + 1, kNone);
    size_t& owner = owners[found->ordinal];
    if (owner != kNone) gradients_[owner].ordinal = kNone;
    owner = index;
    gradient.ordinal = found->ordinal;
  }

  void set_place(size_t index, const at::Tensor& memory) {
    Gradient& gradient = gradients_.at(index);
    gradient.place = nullptr;
    if (!memory.defined() || gradient.bytes == 0) return;
    LOCKSTEP_CHECK(memory.nbytes() == gradient.bytes, "a place has its gradient's size");
    gradient.place = std::make_shared<internal::Place>(memory);
  }

  bool occupied(size_t index) const {
    const auto& place = gradients_.at(index).place;
    return place && place->lent;
  }

 private:
  struct Gradient {
    size_t bytes = 0;
    std::shared_ptr<internal::Place> place;
    bool awaited = false;
    // The ordinal, among those of its size, of the allocation that became it.
    size_t ordinal = kNone;
  };
  struct Size {
    std::vector<size_t> owners;  // by ordinal: the gradient that it became
    size_t count = 0;            // allocations in this backward
  };
  struct Allocation {
    const void* memory;
    size_t bytes;
    size_t ordinal;
  };
  std::vector<Gradient> gradients_;
  std::unordered_map<size_t, Size> sizes_;  // by size in bytes
  std::vector<Allocation> log_;             // of this backward
};

GradientPlacement::GradientPlacement(std::vector<size_t> bytes)
    : plan_(std::make_shared<Plan>(std::move(bytes))) {
  internal::install_placing_allocator();
}

GradientPlacement::~GradientPlacement() {
  end();
}

void GradientPlacement::set_place(size_t index, const at::Tensor& memory) {
  plan_->set_place(index, memory);
}

void GradientPlacement::begin() {
  end();
  plan_->begin();
  internal::watch(plan_);
}

void GradientPlacement::end() noexcept {
  internal::unwatch(*plan_);
}

bool GradientPlacement::watching() const {
  return internal::watches_this_thread(*plan_);
}

void GradientPlacement::expect(size_t index, bool awaited) {
  plan_->expect(index, awaited);
}

void GradientPlacement::arrived(size_t index, const at::Tensor& gradient) {
  if (watching())
    plan_->learn(index, gradient);
  else
    plan_->expect(index, false);
}

bool GradientPlacement::occupied(size_t index) const {
  return plan_->occupied(index);
}

void GradientPlacement::vacate(const at::Tensor& gradient) {
  const at::Storage& storage = gradient.storage();
  const size_t bytes = storage.nbytes();
  c10::DataPtr elsewhere = internal::allocate_unseen(bytes);
  std::memcpy(elsewhere.get(), storage.data(), bytes);
  storage.set_data_ptr_noswap(std::move(elsewhere));
}

}  // namespace lockstep::inline v0::flat
