// The memory of parameters, gradients and state: flat buckets, each divided among the ranks. Not
// used directly: see zero_optimizer.h.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "lockstep/comm/communicator.h"
#include "lockstep/comm/work.h"
#include "lockstep/flat/bucket_plan.h"
#include "lockstep/flat/gradient_placement.h"
#include "lockstep/flat/shard_plan.h"
#include "lockstep/flat/turn_plan.h"
#include "lockstep/parallel/zero/internal/gathered_units.h"
#include "lockstep/parallel/zero/internal/host_copy.h"
#include "lockstep/parallel/zero/internal/unit_plan.h"
#include "lockstep/parallel/zero/internal/zero_layout.h"

namespace lockstep::inline v0::internal {

// A parameter, and the progress of its gradient in this step.
struct ZeroParameter {
  std::string name;
  at::Tensor tensor;  // the module's tensor, whose memory is in the bucket
  at::Tensor view;    // its gradient's place
  at::Tensor early;   // the gradient, if it arrived before the place was lent
  size_t bucket = 0;
  bool arrived = false;  // in the backward that communicates
  bool placed = false;   // and its values are in `view`
  bool used = false;     // in any backward of this step
  int64_t steps = 0;     // steps that its state has seen
};

// A parameter's place in a bucket.
struct ZeroSlot {
  size_t parameter = 0;
  int64_t offset = 0;
  int64_t numel = 0;
  flat::Range own;  // its elements in this rank's part
};

struct ZeroBucket {
  size_t group = 0;
  std::optional<size_t> unit;  // the unit of these parameters, if they are fetched
  int64_t part = 0;            // elements whose state a rank keeps
  int64_t origin = 0;          // beginning of this rank's part
  std::vector<ZeroSlot> slots;
  at::Tensor parameters;
  KeptFlat kept;              // for a unit
  at::Tensor gradients;       // the bucket's own memory, or a lent buffer
  at::Tensor own_parameters;  // this rank's part of `parameters`: in it, or kept
  at::Tensor own_master;      // the same in float32, where there is a master
  at::Tensor own_gradient;    // its average, once reduced: in `gradients`, unless has_own_average()
  at::Tensor arriving;        // the average being reduced, where own_gradient is occupied
  std::optional<size_t> after;     // the bucket that has the buffer before this one
  size_t buffer = 0;               // its index
  std::string state_directory;     // directory of the states' files; "": they are in memory
  std::vector<at::Tensor> states;  // of this rank's part; made at the first use
  size_t missing = 0;              // gradients that have not arrived
  Work work;                       // the reduction, then the gathering

  const at::Tensor& state(size_t which);
  // The values that a step changes.
  const at::Tensor& own_values() const {
    return own_master.defined() ? own_master : own_parameters;
  }
  bool has_own_average() const { return !own_gradient.is_alias_of(gradients); }
};

// Throws InvalidArgument as described in zero_optimizer.h.
void check_parameters(const std::vector<ZeroParameter>& parameters);

class ZeroBuckets {
 public:
  // Moves the parameters, with rank 0's values; groups[i] is parameter i's group. They have been
  // checked. Where there are units, those on the host move to the communicator's device a bucket at
  // a time. Collective.
  ZeroBuckets(Communicator& comm, std::vector<ZeroParameter> parameters,
              std::span<const size_t> groups, const ZeroLayout& layout);

  std::vector<ZeroParameter>& parameters() { return parameters_; }
  const std::vector<ZeroParameter>& parameters() const { return parameters_; }
  std::vector<ZeroBucket>& buckets() { return buckets_; }
  const std::vector<ZeroBucket>& buckets() const { return buckets_; }
  int parts() const { return parts_; }
  bool lends() const { return !pool_.empty(); }
  // Null: every rank has its own copy of the parameters.
  HostCopy* host_copy() { return host_copy_.get(); }
  const HostCopy* host_copy() const { return host_copy_.get(); }
  // Null: all parameters are whole on every host.
  const std::shared_ptr<GatheredUnits>& units() const { return units_; }
  // Bytes of the memory in which buckets take turns.
  int64_t pool_bytes() const;

  // Throws InvalidArgument if a parameter no longer lies where it was put.
  void check_places() const;
  // Restores the state before the first backward of a step: no gradients.
  // Requires: no pending work.
  void reset();
  // The same, except for the gradients and the record of their use.
  void forget_arrivals();

  // A backward begins on this thread, or has ended: from the beginning on, backward may write
  // gradients to their places, those of lent buffers after lend().
  void begin_backward();
  void end_backward() noexcept { placement_.end(); }
  // The gradient has arrived: remembers where autograd had put it.
  void arrived(size_t index) { placement_.arrived(index, parameters_[index].tensor.grad()); }

  // If buffers are lent: lends one to this bucket.
  void lend(size_t index);
  // Puts the gradient's values into the view, unless backward wrote them there; zeros where there
  // is none. From then on the view is the gradient or, where it is lent, the gradient is undefined.
  // Returns false if another tensor lies in that place, which may be gone later. `passed` is that
  // of on_gradient(), in a gradient's hook.
  bool place(size_t index, const at::Tensor& passed = {});
  // The same for all gradients of the bucket without a place; the bucket moves if a tensor is in
  // the way.
  void place_all(size_t index);
  // Bytes of gradients that backward did not write to their places, since the beginning.
  int64_t copied_bytes() const { return copied_bytes_; }

 private:
  void find_units(const ZeroUnits& units);
  void divide_units(const ZeroUnits& units);
  void make_pool(Communicator& comm, std::span<const flat::ShardedBucket> plans, size_t each);
  at::Tensor make_parameters(Communicator& comm, const flat::Bucket& plan, bool of_a_unit);
  // `values`: whether the parameters' values move too.
  void move(ZeroBucket& bucket, const flat::Bucket& plan, int part, bool values);
  void bear(ZeroBucket& bucket, const ZeroLayout& layout);
  void clear_padding(const ZeroBucket& bucket);
  void move_out(ZeroBucket& bucket);
  void reseat(ZeroBucket& bucket);

  std::vector<ZeroParameter> parameters_;
  std::vector<at::Device> devices_;  // of each
  std::vector<ZeroBucket> buckets_;
  std::vector<at::Tensor> pool_;
  flat::TurnPlan turns_;
  std::unique_ptr<HostCopy> host_copy_;
  std::shared_ptr<GatheredUnits> units_;  // hooks hold it weakly
  UnitPlan unit_plan_;
  flat::GradientPlacement placement_;
  int64_t copied_bytes_ = 0;
  int parts_;
  bool alone_;  // there is no other rank
};

}  // namespace lockstep::inline v0::internal
