// Marks on tensors: which kinds of layer have hooks there, and the tensor's role in them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/hooks/layer_hook.h"

namespace lockstep::inline v0::hooks::internal {

enum class Kind : uint8_t { kLinear, kConvolution, kEmbedding, kBatchNorm, kLayerNorm, kGroupNorm };

enum class Role : uint8_t {
  kWeight,            // or a buffer: the operation's argument that is checked
  kTransposedWeight,  // a view, which Linear makes in every forward
  kBias,              // Linear's
  kCarrier,           // not a tensor of the layer: it only carries the mark
};

// It is never changed once it is on a tensor: clones of a module share it.
struct Mark final : c10::BackendMeta {
  struct Entry {
    Kind kind = Kind::kLinear;
    Role role = Role::kWeight;
    bool has_bias = false;  // Linear
    std::shared_ptr<const LayerHooks> hooks;
  };
  std::vector<Entry> entries;

  const Entry* find(Kind kind) const;
};

const Mark* mark_of(const at::Tensor& tensor);
// The tensor's entry of that kind, or null.
const Mark::Entry* entry_of(const at::Tensor& tensor, Kind kind);

// In place, so that all owners of the tensor see it. Null or without entries: removes the mark.
void set_mark(const at::Tensor& tensor, c10::intrusive_ptr<Mark> mark);
// Adds the entry, replacing the tensor's of that kind; without hooks, removes that one.
void set_entry(const at::Tensor& tensor, Mark::Entry entry);

// Registers the kernels that carry marks over to copies.
void register_mark_kernels();

}  // namespace lockstep::inline v0::hooks::internal
