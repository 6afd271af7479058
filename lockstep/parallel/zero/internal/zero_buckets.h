// Where parameters, gradients and state lie: flat buckets, each divided among the ranks. Not used
// directly: see zero_optimizer.h.
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
#include "lockstep/flat/gradient_placement.h"
#include "lockstep/flat/bucket_plan.h"
#include "lockstep/flat/shard_plan.h"
#include "lockstep/flat/turn_plan.h"
#include "lockstep/parallel/zero/internal/gathered_units.h"
#include "lockstep/parallel/zero/internal/host_copy.h"
#include "lockstep/parallel/zero/internal/unit_plan.h"
#include "lockstep/parallel/zero/internal/zero_layout.h"

namespace lockstep::internal {

// A parameter, and how far its gradient is in this step.
struct ZeroParameter {
  std::string name;
  at::Tensor tensor;  // the module's, whose memory is in the bucket
  at::Tensor view;    // its gradient's place
  at::Tensor early;   // the gradient, where it has come before the place was lent
  size_t bucket = 0;
  bool arrived = false;  // in the backward that communicates
  bool placed = false;   // and its values are in `view`
  bool used = false;     // in any backward of this step
  int64_t steps = 0;     // that its state has seen
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
  std::optional<size_t> unit;  // whose parameters these are, if they are fetched
  int64_t part = 0;            // elements that a rank keeps state of
  int64_t origin = 0;          // where this rank's part begins
  std::vector<ZeroSlot> slots;
  at::Tensor parameters;
  KeptFlat kept;              // of a unit
  at::Tensor gradients;       // the bucket's own memory, or a buffer that is lent to it
  at::Tensor own_parameters;  // this rank's part of `parameters`: in it, or kept
  at::Tensor own_master;      // the same in float32, where it has a master
  at::Tensor own_gradient;    // its average, once reduced: in `gradients`, unless has_own_average()
  at::Tensor arriving;        // the average on its way, where own_gradient holds something
  std::optional<size_t> after;     // the bucket that has the buffer before
  size_t buffer = 0;               // which
  std::string state_directory;     // where files have the states; "": they are in memory
  std::vector<at::Tensor> states;  // of this rank's part; made when first asked for
  size_t missing = 0;              // gradients that have not arrived
  Work work;                       // the reduction, then the gathering

  const at::Tensor& state(size_t which);
  // What a step changes.
  const at::Tensor& own_values() const {
    return own_master.defined() ? own_master : own_parameters;
  }
  bool has_own_average() const { return !own_gradient.is_alias_of(gradients); }
};

// Throws InvalidArgument as zero_optimizer.h says.
void check_parameters(const std::vector<ZeroParameter>& parameters);

class ZeroBuckets {
 public:
  // Moves the parameters, with rank 0's values; groups[i] is parameter i's. They have been checked. Where there are
  // units, those on the host go to the device that the communicator moves, a bucket at a time.
  // Collective.
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
  // Bytes of the memory that buckets take in turn.
  int64_t pool_bytes() const;

  // Throws InvalidArgument if a parameter no longer lies where it was put.
  void check_places() const;
  // Everything as before the first backward of a step: no gradients. No work may be under way.
  void reset();
  // The same, but for the gradients and what is known of their use.
  void forget_arrivals();

  // A backward begins on this thread: from then on gradients may be born in their places, those of
  // lent buffers after lend(). Or it has ended.
  void begin_backward();
  void end_backward() noexcept { placement_.end(); }
  // The gradient is there: remembers where autograd had put it.
  void arrived(size_t index) { placement_.arrived(index, parameters_[index].tensor.grad()); }

  // Where buffers are lent: this bucket has one from now on.
  void lend(size_t index);
  // Puts the gradient's values into the view, unless they were born there; zeros where there is none.
  // The view is the gradient from then on, or, where it is lent, nothing is. False: another tensor
  // lives in that place, which may be gone later. `passed` is on_gradient()'s, in a gradient's hook.
  bool place(size_t index, const at::Tensor& passed = {});
  // The same of all gradients of the bucket that have no place yet; what is in the way makes it move.
  void place_all(size_t index);
  // Bytes of gradients that were not born in their places, since the beginning.
  int64_t copied_bytes() const { return copied_bytes_; }

 private:
  void find_units(const ZeroUnits& units);
  void divide_units(const ZeroUnits& units);
  void make_pool(Communicator& comm, std::span<const flat::ShardedBucket> plans, size_t each);
  at::Tensor make_parameters(Communicator& comm, const flat::Bucket& plan, bool of_a_unit);
  // `values`: those of the parameters go along.
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

}  // namespace lockstep::internal
