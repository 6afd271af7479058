// Hooks that compute modules of which each part has a slice, or some rows. Not used directly.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/hooks/layer_hook.h"
#include "lockstep/parallel/tensor/tensor_plan.h"
#include "lockstep/shard/internal/divided_rows.h"

namespace lockstep::inline v0::internal {

// The state that the hooks of all divided modules of a model share.
class Division {
 public:
  Division(Communicator comm, DividedRows rows) : comm_(std::move(comm)), rows_(std::move(rows)) {}

  const Communicator& comm() const { return comm_; }
  const DividedRows& rows() const { return rows_; }
  // DividedRows::enter(); one for all modules of a region that are given the same tensor, so that backward adds up their
  // gradients once.
  at::Tensor enter(const at::Tensor& x);
  // The module whose part of some columns is on its way; "": none.
  void opened(const std::string& name) { open_ = name; }
  void closed();
  const std::string& open() const { return open_; }

 private:
  Communicator comm_;
  DividedRows rows_;
  std::string open_;
  at::Tensor given_, entered_;  // the last one of the region that is open
  int64_t version_ = 0;
  bool with_gradients_ = false;
};

// The hook of a module of that name: its parameters are its slices already. `slices`: those of the weight, one a part.
std::shared_ptr<hooks::LayerHook> divided_linear(std::shared_ptr<Division> division,
                                                 std::string name, TensorStyle style,
                                                 const std::vector<PartSlice>& slices);
std::shared_ptr<hooks::LayerHook> divided_embedding(std::shared_ptr<Division> division,
                                                    std::string name,
                                                    const std::vector<PartSlice>& slices);
// The hook of a module whose style is one of rows (is_of_rows()); null: it needs none.
std::shared_ptr<hooks::LayerHook> divided_row_layer(std::shared_ptr<Division> division,
                                                    TensorStyle style);

}  // namespace lockstep::inline v0::internal
