// Marks on tensors: which kinds of layer have hooks there, and what the tensor is to them.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/TensorImpl.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "lockstep/hooks/layer_hook.h"

namespace lockstep::hooks::internal {

enum class Kind : uint8_t { kLinear, kConvolution, kEmbedding, kBatchNorm, kLayerNorm, kGroupNorm };

enum class Role : uint8_t {
  kWeight,            // or a buffer: the operation's argument that is looked at
  kTransposedWeight,  // a view, as Linear makes it in every forward
  kBias,              // Linear's
  kCarrier,           // no tensor of the layer's: there for the mark alone
};

// Never changed once it is on a tensor: clones of a module share it.
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

// In place: whoever holds the tensor sees it. Null or without entries: takes it away.
void set_mark(const at::Tensor& tensor, c10::intrusive_ptr<Mark> mark);
// Adds the entry, in place of the tensor's of that kind; without hooks, takes that away.
void set_entry(const at::Tensor& tensor, Mark::Entry entry);

// The kernels that carry marks over to copies.
void register_mark_kernels();

}  // namespace lockstep::hooks::internal
