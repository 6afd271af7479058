// ZeroOptimizer: SGD, Adam, AdamW or Muon whose state, gradients and parameters are divided among the
// ranks: ZeRO stages 1, 2 and 3 (Rajbhandari et al., arXiv:1910.02054).
//
// Parameters and their gradients lie in flat buckets, every bucket divided into as many equal parts
// as there are ranks. In backward, as a bucket's last gradient lands, the ranks' gradients are
// averaged so that each rank gets its own part only (reduce_scatter); step() updates that part, with
// the fused kernels of libtorch. Of the moments a rank keeps one N-th.
//
// The parameters lie once a host, in memory that all its ranks have mapped (shared_empty): every rank
// writes its part, a barrier publishes the whole. So no rank of the host sends parameters at all, a
// module runs as it is, whatever it is made of, and ranks may take different ways through it. Hosts
// exchange the parts once a host, not once a rank. Where ranks have no such memory, every rank has a
// copy, which an all_gather puts together. A device is the memory of one rank: what is said of hosts is said of ranks
// there, so that stage 3 divides what is in units, and nothing without them. Parameters of units may be on the host until
// the optimizer is made, which brings them to comm.device() a bucket at a time.
//
//   ZeroOptimizer optimizer(comm, to_named_tensors(model->named_parameters()),
//                           torch::optim::AdamWOptions(1e-4), {.stage = 3});
//   loss.backward();   // gradients are averaged as they come
//   optimizer.step();  // and are gone afterwards
//
// How a parameter may be divided, ZeroOptions::policy says: anywhere, between rows, or not at all. Under Muon
// no matrix is divided: each is one rank's, which alone orthogonalizes it.
//
// The numbers are those of optim::FusedAdamW (FusedAdam, FusedSGD, Muon) over DistributedDataParallel's
// averages, but for the order in which the ranks' gradients are added up, and for parameters that
// no rank used: their gradient counts as zero here, so that momentum and decay move them.
#pragma once

#include <torch/optim/adam.h>
#include <torch/optim/adamw.h>
#include <torch/optim/optimizer.h>
#include <torch/optim/sgd.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "lockstep/checkpoint/safetensors.h"
#include "lockstep/checkpoint/sliced_tensors.h"
#include "lockstep/comm/communicator.h"
#include "lockstep/flat/bucket_plan.h"
#include "lockstep/flat/named_tensors.h"
#include "lockstep/flat/pending_gradients.h"
#include "lockstep/flat/shard_policy.h"
#include "lockstep/flat/steps_on_device.h"
#include "lockstep/optim/algorithm.h"
#include "lockstep/optim/fused_step.h"

namespace torch::nn {
class Module;
}

namespace lockstep {

namespace internal {
class ZeroState;
}

// Whose options are all defaults' or a group's: its class is the kind of the optimizer.
using ZeroAlgorithm = optim::Algorithm;

// Stage 3 with the parameters divided between hosts as well (FSDP's full sharding; without it each host
// has a whole copy, FSDP's hybrid): a host keeps what its ranks update, and has a unit's other parameters
// only while the unit computes. They are fetched once a host, the next unit's while this one computes;
// what is in no unit (embeddings, heads) stays whole. A step sends 1.5 times what DistributedDataParallel
// does between hosts. On one host nothing is fetched and this has no effect, but on devices, each of which is what a
// host is here; forward, backward and step() are then given to one stream.
//
// All ranks run the same units in the same order, forward and backward: units that differ are Mismatch,
// which names both. On devices a backward may leave units out on some ranks, whose loss does not depend on them.
// A unit's parameters can be read in its own forward and backward, and under ZeroOptimizer::whole_parameters();
// elsewhere that throws c10::Error, which names the unit. Views of them (detach(), t()) that somebody keeps are
// not told apart: after the unit they read zeros or old values.
struct ZeroUnits {
  // Whose modules are the units; kept. Null: no units.
  std::shared_ptr<torch::nn::Module> model = nullptr;
  // As modules_named() takes them, such as "model.layers.*"; modules that wrap_forward() takes
  // (hooks/forward_hook.h) but for single layers of libtorch, none below another. What a module outside
  // of the unit has as well stays whole. Empty: layers_of().
  std::vector<std::string> names = {};
  // False: from its forward to its backward a unit stays, which saves a third of the bytes.
  bool reshard_after_forward = true;
};

struct ZeroOptions {
  // What is divided. 0: nothing; gradients are all-reduced and every rank does the whole step. 1: the
  // optimizer's state. 2: gradients too: a rank keeps its part of the averages, and what backward
  // makes is freed as it is reduced. 3: parameters too, which is one_copy: on one host a rank's share
  // is an N-th, between hosts each host has a whole copy, or, with `units`, an N-th a rank as well.
  int stage = 1;
  // The parameters lie once a host, where the engine has memory for that (capabilities().shared_memory)
  // and the ranks of a host follow each other; stage 3 throws InvalidArgument where not, but on
  // devices. Who writes a
  // parameter then, writes it for all ranks of the host: let one rank do it, or all the same value,
  // never `p.mul_(...)` on each. It stays so when the optimizer is gone: p.set_data(p.detach().clone())
  // gives a rank its own again. False: every rank has its own.
  bool one_copy = true;
  // Stages 2 and 3: every backward is reduced by itself, as it ends, and step() takes the sum of the
  // averages. Gradients of several backwards then take no more memory than those of one, at the price
  // of as many reductions. Each backward reaches a parameter of this optimizer on all ranks or on none.
  // False: all but the last are under no_sync().
  bool accumulate = false;
  flat::BucketSizes bucket_sizes = {};  // bytes: the first bucket of each group, the others
  // A parameter of bfloat16 or float16 has a float32 master, divided among the ranks as the moments are, which
  // are float32 then, too. step() updates the master and rounds it into the parameter: what forward
  // reads, hosts fetch and ranks gather has 16 bits, and no update is lost for being small (DeepSpeed's bf16
  // engine; FSDP2's MixedPrecisionPolicy with param_dtype). Gradients come in 16 bits; a rank's part of the
  // average is kept, and added up over backwards in stages 2 and 3, in float32 (on one rank autograd adds
  // up, in 16 bits). Masters are memory, also with
  // `state_directory`. Who writes a parameter from outside is heard: where it is not what its master rounds
  // to, the step begins at the parameter. Without a 16-bit parameter InvalidArgument.
  bool master_weights = false;
  // With master_weights: gradients are widened before they are reduced, so that the average is float32, at
  // twice the bytes, and up to three buckets' memory in float32 meanwhile. False: they are given to the
  // communicator in 16 bits, which sums in float32 and rounds once.
  bool reduce_float32 = false;
  // How each parameter may be divided, by the names that the optimizer has (flat/shard_policy.h); the same on all
  // ranks. Empty: anywhere; under Muon {{.cut = Cut::kWhole, .dims = 2}}, and a policy that cuts a matrix is
  // InvalidArgument. What is not cut anywhere takes larger buckets, and padding (flat/shard_plan.h).
  flat::ShardPolicy policy = {};
  // False: nothing is reduced before step(), which allows any number of backwards a step, nested
  // ones (activation checkpointing) that reach a parameter twice included.
  bool overlap = true;
  ZeroUnits units = {};
  // Parameters born divided: writes the elements [begin, begin + part.numel()) of the parameter of that name,
  // as they lie in memory, into `part` (1-D, contiguous). A rank is asked for its own part alone, and what the
  // parameters held is not read: a model made without values (InitialParameters::kNone) may be larger than
  // any rank's memory, and no rank sends it. TransformerLmImpl::drawn_parts() and stored_parts() of a checkpoint
  // give such functions; the same on all ranks. Empty: rank 0's values.
  std::function<void(const std::string& name, int64_t begin, const at::Tensor& part)> initial = {};
  // copies[r]: which copy of the parameters rank r shares; ranks of one host that follow each other. For
  // one copy a NUMA node, say. Empty: one a host. On devices: as many ranks a copy, which divide its units among them
  // (hybrid sharding). Empty: one, among all.
  std::vector<int> copies = {};
  // A directory of this rank's host: the optimizer's state lies in nameless files there instead of in memory,
  // and is paged in and out by the system (DeepSpeed's offloading to NVMe). Room for it is taken at
  // construction: where there is none SystemError, on the other ranks an Error that names those. "": in memory.
  std::string state_directory = {};
  // False: a parameter that no rank used since the last step is InvalidArgument, on all ranks.
  bool ignore_unused = true;
};

// Bytes of a rank, for what is optimized.
struct ZeroMemory {
  int64_t parameters = 0;  // its share of what its host has
  int64_t gradients = 0;
  int64_t state = 0;    // 0 before the first step
  int64_t buffers = 0;  // that gradients pass through in stages 2 and 3
  int64_t units = 0;    // its share of what its host fetches at once (ZeroUnits), at most
  int64_t masters = 0;  // float32 ones of 16-bit parameters (ZeroOptions::master_weights)
  friend bool operator==(const ZeroMemory&, const ZeroMemory&) = default;
};

// Who shares a copy of the parameters, as a rank sees it.
struct ZeroRanks {
  int all = 1;
  int sharing =
      1;  // that copy with this rank, itself included; 1 also where every rank has its own
  int keepers = 1;  // of divided copies on devices (ZeroOptions::copies): ranks that keep the same
  bool one_copy = true;  // the engine has memory for that
};
// What memory() says after the first step, from shapes and types alone: nothing is allocated, and the
// parameters may be on the device meta. `names`: as ZeroOptimizer takes them, for the policy. Pure. Throws
// InvalidArgument as ZeroOptimizer does for units and the policy.
ZeroMemory plan_memory(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                       const ZeroAlgorithm& defaults, const ZeroOptions& options,
                       const ZeroRanks& ranks, const std::vector<std::string>& names = {});

// Seconds of this rank since the optimizer was made.
struct ZeroTimes {
  double during = 0;     // in backward: putting gradients into buckets, starting reductions
  double waiting = 0;    // in step(): for reductions, and for the other ranks
  double updating = 0;   // in step(): the kernels
  double gathering = 0;  // in step(): putting the parameters together
  double fetching = 0;   // in forward and backward: for units (ZeroUnits) that were not there yet
  int64_t copied_bytes = 0;  // of gradients that backward did not write into their buckets itself
};

// Parameter groups are those of torch: set_learning_rate() and changes of options() take effect at
// the next step. state() is empty: see state_on_root(). Groups cannot be added later.
//
// Memory: at construction the parameters move into flat buffers, the same tensor objects, so make it
// after model->to(...), and only one a parameter. A float32 parameter under Adam, on N ranks of one
// host: 4 / N bytes (4 without one_copy), for the gradient 4 in stage 1 and 4 / N in 2 and 3, 8 / N for
// the moments; DDP has 16. Stages 2 and 3 have three buckets' memory more, a dtype, through which
// gradients pass, and grad() is undefined once a gradient is reduced. memory() counts. Each parameter is a leaf
// that requires a gradient; several dtypes are fine, each group and dtype has its own buckets, and
// state has its parameter's dtype, or its master's. A bfloat16 parameter with a master has 2 / N bytes (2 without
// one_copy), 4 / N for the master, 8 / N for the moments, and for the gradient 4 / N, with 2 more in stages 0
// and 1. Frozen parameters are not given. Sparse gradients become dense.
//
// step() drops the gradients (zero_grad() need not be called, and does no harm before backward). A
// backward that threw at the same place on all ranks, elsewhere than in this optimizer's own hooks,
// can be repeated after zero_grad(); without that the next one throws InvalidArgument. In stages 2 and
// 3 it takes all gradients of the step with it: it can be repeated at once where it was the step's
// first; else the next one throws InvalidArgument, unless leave_out() has come before.
// Not copyable, not movable. One thread at a time. Hooks do nothing once the optimizer is gone, but for
// units' (ZeroUnits), whose parameters are away for good.
class ZeroOptimizer final : public torch::optim::Optimizer,
                            public optim::FusedStep,
                            public StepsOnDevice,
                            public PendingGradients {
 public:
  // Throws InvalidArgument on all ranks, before anything is allocated, where plan_memory() of the ranks of one
  // control group is more than it allows.
  // Collective: compares names, shapes and dtypes among the ranks (Mismatch names the first
  // difference), makes a communicator of its own, and copies rank 0's values to all
  // (or asks `initial`, and passes on what it throws: a rank whose part cannot be had leaves the others waiting
  // until it ends; for a parameter with a master in float32, which is then rounded). Throws
  // InvalidArgument for options that contradict each other or that the engine cannot follow, for a parameter that occurs twice or shares memory with another, is frozen, no
  // leaf, sparse or not floating-point.
  ZeroOptimizer(Communicator comm, const NamedTensors& parameters, const ZeroAlgorithm& algorithm,
                const ZeroOptions& options = {});
  // In groups, each with its own options or the defaults. `names`: of all parameters of all groups,
  // in order, for messages and ZeroOptions::policy.
  ZeroOptimizer(Communicator comm, const std::vector<torch::optim::OptimizerParamGroup>& groups,
                const std::vector<std::string>& names, const ZeroAlgorithm& defaults,
                const ZeroOptions& options = {});
  ~ZeroOptimizer() override;
  ZeroOptimizer(const ZeroOptimizer&) = delete;
  ZeroOptimizer& operator=(const ZeroOptimizer&) = delete;

  // Collective. Clipping, unscaling and skipping are as FusedStep says, by the norm over all ranks'
  // parts: the same on all ranks, whatever their number to the last bits of a double, and the same
  // bits in every run. A skip is everybody's. Throws Mismatch on all ranks, naming them, if some
  // have done a backward since the last step and others have not.
  optim::StepResult step(const optim::StepOptions& options) override;
  at::Tensor step(LossClosure closure = nullptr) override;

  // Collective. Waits for the averages; own_gradients() are this rank's parts of them, bucket by
  // bucket. grad() is then unspecified; own_gradients() are zeros where none has come. amp::GradScaler is to be made with the communicator.
  void synchronize() override;
  std::optional<std::vector<at::Tensor>> own_gradients() override;
  // Collective. A step() that is skipped: drops the gradients.
  void leave_out() override;
  // Collective. step() with that found_inf.
  void step_unless(const at::Tensor& found_inf) override;
  // Local. What gives the state, and takes it, does it first.
  void settle() const override;

  // While the guard lives, backward() does not communicate: gradients add up on this rank, and are
  // averaged by the next backward after it, or by step(). The same on all ranks.
  class [[nodiscard]] NoSync {
   public:
    explicit NoSync(ZeroOptimizer& optimizer);
    ~NoSync();
    NoSync(NoSync&&) noexcept = default;
    NoSync& operator=(NoSync&&) = delete;

   private:
    std::shared_ptr<internal::ZeroState> state_;
  };
  NoSync no_sync() { return NoSync(*this); }

  // Collective. While what it returns lives, all units are whole (ZeroUnits): each rank may read the
  // parameters and run the model, in its own way. Where it goes does not communicate; before the next
  // step(), at the same place on all ranks. Null where the parameters are whole anyway.
  [[nodiscard]] std::shared_ptr<void> whole_parameters();

  // The whole state on rank 0, as optimizer_state() of torch::optim::SGD, Adam or AdamW over the
  // same groups (of float32 copies, where there are masters) gives it, and "<index>.master_weight" for each
  // master, which a plain optimizer does not take; for write_safetensors() or load_optimizer() there; empty on
  // the others. Collective. Takes that much memory on rank 0.
  Safetensors state_on_root();
  // This rank's part of the same: its slices, views of the optimizer's own memory, valid and unchanged
  // until the next step(). All ranks' together are the whole (checkpoint_writer.h); the options and
  // counts of steps are rank 0's. Does not communicate.
  SlicedTensors own_state();
  // Takes over a whole state: what a checkpoint has of any number of ranks, state_on_root(), or
  // optimizer_state() of a plain optimizer of that kind (masters are then what the parameters hold); options
  // included. All ranks call it with the same; each reads and keeps its part. Throws CheckpointError that begins with `source`; then
  // nothing has changed.
  void load_state(const SlicedTensors& state, const std::string& source);

  // This rank's parts of the parameters, by name, as own_state() gives those of the state; units stay away.
  SlicedTensors own_parameters() const;
  // All of them on rank 0, in the host's memory, a bucket at a time; empty on the others. Collective.
  NamedTensors parameters_on_root();
  // Takes over values by name: what own_parameters() of any number of ranks have written together, or a model's file. Each
  // rank reads its parts alone. Between steps. Collective. Throws CheckpointError that begins with `source`, where one is
  // missing or has another shape; then nothing has changed.
  void load_parameters(const SlicedTensors& values, const std::string& source);
  // No backward will come to what forwards have computed so far. On all ranks.
  void forget_forwards();

  // All that is this rank's alone, as bytes (uint8, 1-D): its parts of the parameters, masters and moments, and how many
  // steps they have seen; options are not. For a run that goes back to it, or whose rank is started anew
  // (recover/rollback_recovery.h). In `memory`, a former share that nobody needs any more, where that is large enough. Between
  // steps. Does not communicate.
  at::Tensor share(at::Tensor memory = {}) const;
  // What share() has, and the same into memory of that size.
  int64_t share_bytes() const;
  void write_share(const at::Tensor& into) const;
  // Puts back what share() gave on the rank of this number among as many, of the same parameters and options; returns
  // when all ranks' parts are there. Between steps. Collective. Throws DataError for bytes of another optimizer; then nothing
  // has changed here, and the others wait.
  void restore_share(const at::Tensor& share);

  // Elements of state that this rank keeps, padding included.
  int64_t state_numel() const;
  size_t bucket_count() const;
  ZeroMemory memory() const;
  // plan_memory() of this optimizer, on these ranks.
  ZeroMemory planned_memory() const;
  // How the policy divided the parameters: a line a rule, with the tensors and bytes that it took; for people.
  const std::string& sharding() const { return sharding_; }
  ZeroTimes times() const;
  CommunicatorStats stats() const;  // of its own communicator
  // Expires as the optimizer goes, for whoever keeps a pointer to it.
  std::weak_ptr<const void> lifetime() const { return life_; }

 private:
  ZeroAlgorithm defaults_;
  std::string sharding_;
  std::shared_ptr<const void> life_ = std::make_shared<char>();
  std::shared_ptr<internal::ZeroState> state_;
};

}  // namespace lockstep
