// ZeroOptimizer: SGD, Adam, AdamW or Muon whose state, gradients and parameters are divided among
// the ranks: ZeRO stages 1, 2 and 3 (Rajbhandari et al., arXiv:1910.02054).
//
// Parameters and their gradients lie in flat buckets; every bucket is divided into as many equal
// parts as there are ranks. In backward, when a bucket's last gradient has arrived, the ranks'
// gradients are averaged so that each rank gets its own part only (reduce_scatter); step() updates
// that part, with the fused kernels of libtorch. A rank keeps one N-th of the moments.
//
// The parameters lie once per host, in memory that all its ranks have mapped (shared_empty): every
// rank writes its part, and a barrier publishes the whole. No rank of the host therefore sends
// parameters; a module of any kind runs unchanged, and ranks may take different paths through it.
// Hosts exchange the parts once per host instead of once per rank. Where ranks have no such memory,
// every rank has a copy, which an all_gather assembles. A device is the memory of one rank:
// statements about hosts hold for ranks there, so stage 3 divides the parameters of units, and
// nothing without units. Parameters of units may be on the host until the optimizer is made, which
// moves them to comm.device() a bucket at a time.
//
//   ZeroOptimizer optimizer(comm, to_named_tensors(model->named_parameters()),
//                           torch::optim::AdamWOptions(1e-4), {.stage = 3});
//   loss.backward();   // gradients are averaged as they come
//   optimizer.step();  // and are gone afterwards
//
// ZeroOptions::policy says how a parameter may be divided: anywhere, between rows, or not at all.
// Under Muon no matrix is divided: each belongs to one rank, which alone orthogonalizes it.
//
// The numbers are those of optim::FusedAdamW (FusedAdam, FusedSGD, Muon) over
// DistributedDataParallel's averages, except for the order in which the ranks' gradients are added,
// and for parameters that no rank used: their gradient counts as zero here, so momentum and decay
// change them.
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
#include "lockstep/core/export.h"
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

namespace lockstep::inline v0 {

namespace internal {
class ZeroState;
}

// The options of all parameters, or of a group: the class selects the kind of optimizer.
using ZeroAlgorithm = optim::Algorithm;

// Stage 3 with the parameters divided between hosts as well (FSDP's full sharding; without it each
// host has a whole copy, FSDP's hybrid): a host keeps the parameters that its ranks update, and has
// a unit's other parameters only while the unit computes. They are fetched once per host, the next
// unit's while this one computes; parameters in no unit (embeddings, heads) stay whole. A step
// sends 1.5 times DistributedDataParallel's bytes between hosts. On one host nothing is fetched and
// this has no effect, except on devices, each of which counts as a host; forward, backward and
// step() must then use one stream.
//
// All ranks run the same units in the same order, forward and backward; units that differ are
// Mismatch, which names both. On devices a backward may leave out units on some ranks, whose loss
// does not depend on them. A unit's parameters can be read in its own forward and backward, and
// under ZeroOptimizer::whole_parameters(); reading them at other times throws c10::Error that names
// the unit. Views of them (detach(), t()) that outlive the unit's computation are not detected:
// they then read zeros or old values.
struct ZeroUnits {
  // The model whose modules are the units; kept alive. Null: no units.
  std::shared_ptr<torch::nn::Module> model = nullptr;
  // Names as modules_named() takes them, such as "model.layers.*", of modules that wrap_forward()
  // takes (hooks/forward_hook.h) except single layers of libtorch; none may contain another.
  // Parameters that a module outside the unit shares stay whole. Empty: layers_of().
  std::vector<std::string> names = {};
  // False: a unit stays from its forward to its backward, which saves a third of the bytes.
  bool reshard_after_forward = true;
};

// The options of a ZeroOptimizer.
struct ZeroOptions {
  // What is divided. 0: nothing; gradients are all-reduced and every rank does the whole step. 1:
  // the optimizer's state. 2: gradients too: a rank keeps its part of the averages, and backward's
  // gradients are freed as they are reduced. 3: parameters too, which implies one_copy: on one host
  // a rank's share is an N-th; between hosts each host has a whole copy or, with `units`, each rank
  // an N-th as well.
  int stage = 1;
  // Whether the parameters lie once per host, where the engine has memory for that
  // (capabilities().shared_memory) and the ranks of a host are consecutive; otherwise stage 3
  // throws InvalidArgument, except on devices. A write to a parameter is then visible to all ranks
  // of the host: let one rank write, or all the same value, and never call `p.mul_(...)` on each.
  // This remains so after the optimizer is gone: p.set_data(p.detach().clone()) gives a rank its
  // own parameter again. False: every rank has its own.
  bool one_copy = true;
  // Stages 2 and 3: every backward is reduced separately, when it ends, and step() uses the sum of
  // the averages. Gradients of several backwards then take no more memory than those of one, at the
  // cost of as many reductions. Each backward must reach a parameter of this optimizer on all ranks
  // or on none. False: all backwards but the last are under no_sync().
  bool accumulate = false;
  flat::BucketSizes bucket_sizes = {};  // bytes: the first bucket of each group, the others
  // Whether a parameter of bfloat16 or float16 has a float32 master, divided among the ranks like
  // the moments, which are then float32, too. step() updates the master and rounds it into the
  // parameter: forward, hosts and ranks use 16 bits, and no update is lost for being small
  // (DeepSpeed's bf16 engine; FSDP2's MixedPrecisionPolicy with param_dtype). Gradients arrive in
  // 16 bits; a rank's part of the average is kept, and added up over backwards in stages 2 and 3,
  // in float32 (on one rank autograd adds up, in 16 bits). Masters are in memory, also with
  // `state_directory`. A write to a parameter from outside takes effect: where the parameter
  // differs from its rounded master, the step starts from the parameter.
  // Throws: InvalidArgument without a 16-bit parameter.
  bool master_weights = false;
  // With master_weights: gradients are widened before they are reduced, so that the average is
  // float32, at the cost of twice the bytes and up to three buckets' memory in float32. False: the
  // communicator gets them in 16 bits, sums in float32 and rounds once.
  bool reduce_float32 = false;
  // How each parameter may be divided, by the optimizer's names (flat/shard_policy.h); the same on
  // all ranks. Empty: anywhere; under Muon {{.cut = Cut::kWhole, .dims = 2}}, and a policy that
  // cuts a matrix is InvalidArgument. Restricted parameters need larger buckets, and padding
  // (flat/shard_plan.h).
  flat::ShardPolicy policy = {};
  // False: nothing is reduced before step(), which allows any number of backwards per step,
  // including nested ones (activation checkpointing) that reach a parameter twice.
  bool overlap = true;
  ZeroUnits units = {};  // stage 3: the modules whose parameters are fetched together; empty: none
  // Deferred initialization of divided parameters: writes the elements [begin, begin +
  // part.numel()) of the parameter with that name, in the order of memory, into `part` (1-D,
  // contiguous). A rank is asked for its own part only, and the parameters' former values are not
  // read: a model made without values (InitialParameters::kNone) may be larger than any rank's
  // memory, and no rank sends it. TransformerLmImpl::drawn_parts() and stored_parts() of a
  // checkpoint return such functions. The same on all ranks. Empty: rank 0's values.
  std::function<void(const std::string& name, int64_t begin, const at::Tensor& part)> initial = {};
  // copies[r]: the copy of the parameters that rank r shares with consecutive ranks of one host,
  // for example one copy per NUMA node. Empty: one per host. On devices: equally many ranks per
  // copy, which divide its units among them (hybrid sharding). Empty: one copy, among all.
  std::vector<int> copies = {};
  // A directory of this rank's host: the optimizer's state lies in unnamed files there instead of
  // in memory, and the system pages it in and out (DeepSpeed's offloading to NVMe). Their space is
  // allocated at construction: without enough space SystemError, and on the other ranks an Error
  // that names those ranks. "": in memory.
  std::string state_directory = {};
  // False: a parameter that no rank used since the last step is InvalidArgument, on all ranks.
  bool ignore_unused = true;
};

// Bytes of a rank, for the optimized parameters.
struct ZeroMemory {
  int64_t parameters = 0;  // its share of its host's parameters
  int64_t gradients = 0;
  int64_t state = 0;    // 0 before the first step
  int64_t buffers = 0;  // for gradients in transit in stages 2 and 3
  int64_t units = 0;    // its share of the units that its host fetches at once (ZeroUnits), at most
  int64_t masters = 0;  // float32 masters of 16-bit parameters (ZeroOptions::master_weights)
  friend bool operator==(const ZeroMemory&, const ZeroMemory&) = default;
};

// The ranks that share a copy of the parameters, from a rank's view.
struct ZeroRanks {
  int all = 1;
  // Ranks that share this rank's copy, itself included; 1 also if every rank has its own.
  int sharing = 1;
  // For divided copies on devices (ZeroOptions::copies): ranks that keep the same part.
  int keepers = 1;
  bool one_copy = true;  // the engine has memory for that
};
// The result of memory() after the first step, from shapes and types alone: nothing is allocated,
// and the parameters may be on the device meta. `names`: as in ZeroOptimizer, for the policy. Pure.
// Throws: InvalidArgument as ZeroOptimizer does for units and the policy.
LOCKSTEP_API ZeroMemory plan_memory(const std::vector<torch::optim::OptimizerParamGroup>& groups,
                                    const ZeroAlgorithm& defaults, const ZeroOptions& options,
                                    const ZeroRanks& ranks,
                                    const std::vector<std::string>& names = {});

// Seconds of this rank since the optimizer was made.
struct ZeroTimes {
  double during = 0;         // in backward: putting gradients into buckets, starting reductions
  double waiting = 0;        // in step(): for reductions, and for the other ranks
  double updating = 0;       // in step(): the kernels
  double gathering = 0;      // in step(): gathering the parameters
  double fetching = 0;       // in forward and backward: waiting for units (ZeroUnits)
  int64_t copied_bytes = 0;  // of gradients that backward did not write into their buckets itself
};

// Parameter groups are those of torch: set_learning_rate() and changes of options() take effect at
// the next step. state() is empty: see state_on_root(). Groups cannot be added later.
//
// Memory: at construction the parameters move into flat buffers, as the same tensor objects, so
// make the optimizer after model->to(...), and only one per parameter. A float32 parameter under
// Adam, on N ranks of one host, takes 4 / N bytes (4 without one_copy); its gradient 4 in stage 1
// and 4 / N in 2 and 3; its moments 8 / N; DDP takes 16. Stages 2 and 3 need memory for three more
// buckets per dtype, through which gradients pass, and grad() is undefined once a gradient is
// reduced. memory() counts all this. Several dtypes are supported: each group and dtype has its own
// buckets, and state has the dtype of its parameter or master. A bfloat16 parameter with a master
// takes 2 / N bytes (2 without one_copy), 4 / N for the master, 8 / N for the moments, and 4 / N
// for the gradient, with 2 more in stages 0 and 1. Sparse gradients become dense.
// Requires: each parameter is a leaf that requires a gradient; frozen parameters are not given.
//
// step() drops the gradients (zero_grad() need not be called, and is harmless before backward). A
// backward that threw at the same place on all ranks, outside this optimizer's own hooks, can be
// repeated after zero_grad(); without that the next one throws InvalidArgument. In stages 2 and 3
// it loses all gradients of the step: it can be repeated at once where it was the step's first;
// otherwise the next one throws InvalidArgument, unless leave_out() was called before. Not
// copyable, not movable. Hooks have no effect once the optimizer is gone, except those of units
// (ZeroUnits), whose parameters are then lost.
// Thread-safety: one thread at a time.
class LOCKSTEP_API ZeroOptimizer final : public torch::optim::Optimizer,
                                         public optim::FusedStep,
                                         public StepsOnDevice,
                                         public PendingGradients {
 public:
  // Compares names, shapes and dtypes among the ranks, makes a communicator of its own, and copies
  // rank 0's values to all. With `initial` it instead asks that function and rethrows its errors (a
  // rank without its part leaves the others waiting until it ends); a parameter with a master is
  // asked for in float32 and then rounded.
  // Collective: all ranks call it.
  // Throws: Mismatch that names the first difference. InvalidArgument on all ranks, before anything
  // is allocated, where plan_memory() of the ranks of one control group exceeds its limit.
  // InvalidArgument for options that contradict each other or that the engine does not support, and
  // for a parameter that occurs twice, shares memory with another, is frozen, sparse, not a leaf or
  // not floating-point.
  ZeroOptimizer(Communicator comm, const NamedTensors& parameters, const ZeroAlgorithm& algorithm,
                const ZeroOptions& options = {});
  // With groups, each with its own options or the defaults. `names`: of all parameters of all
  // groups, in order, for messages and ZeroOptions::policy.
  ZeroOptimizer(Communicator comm, const std::vector<torch::optim::OptimizerParamGroup>& groups,
                const std::vector<std::string>& names, const ZeroAlgorithm& defaults,
                const ZeroOptions& options = {});
  ~ZeroOptimizer() override;
  ZeroOptimizer(const ZeroOptimizer&) = delete;
  ZeroOptimizer& operator=(const ZeroOptimizer&) = delete;

  // Clipping, unscaling and skipping are as in FusedStep, by the norm over all ranks' parts: the
  // norm is the same on all ranks, equal for every number of ranks up to the last bits of a double,
  // and has the same bits in every run. All ranks skip a step together.
  // Collective: all ranks call it.
  // Throws: Mismatch on all ranks, naming them, if some have done a backward since the last step
  // and others have not.
  optim::StepResult step(const optim::StepOptions& options) override;
  at::Tensor step(LossClosure closure = nullptr) override;

  // Waits for the averages; own_gradients() are this rank's parts of them, bucket by bucket. grad()
  // is then unspecified; own_gradients() are zeros where no gradient has arrived. Make
  // amp::GradScaler with the communicator.
  // Collective: all ranks call it.
  void synchronize() override;
  std::optional<std::vector<at::Tensor>> own_gradients() override;
  // Skips a step: drops the gradients.
  // Collective: all ranks call it.
  void leave_out() override;
  // step() with that found_inf.
  // Collective: all ranks call it.
  void step_unless(const at::Tensor& found_inf) override;
  // Local. The functions that read or write the state call it first.
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
  // Backwards while the result lives are not reduced.
  NoSync no_sync() { return NoSync(*this); }

  // While the result lives, all units are whole (ZeroUnits): each rank may read the parameters and
  // run the model in its own way. Its destruction does not communicate, and must come before the
  // next step(), at the same place on all ranks. Null where the parameters are whole anyway.
  // Collective: all ranks call it.
  [[nodiscard]] std::shared_ptr<void> whole_parameters();

  // The whole state on rank 0, in the form of optimizer_state() of torch::optim::SGD, Adam or AdamW
  // over the same groups (of float32 copies, where there are masters), with "<index>.master_weight"
  // for each master, which a plain optimizer does not accept. It is for write_safetensors() or
  // load_optimizer() there; empty on the other ranks.
  // Collective: all ranks call it. Takes that much memory on rank 0.
  Safetensors state_on_root();
  // This rank's part of the same: its slices, views of the optimizer's own memory, valid and
  // unchanged until the next step(). The slices of all ranks are the whole (checkpoint_writer.h);
  // the options and counts of steps are rank 0's. Does not communicate.
  SlicedTensors own_state();
  // Loads a whole state, options included: from a checkpoint of any number of ranks, from
  // state_on_root(), or from optimizer_state() of a plain optimizer of that kind (masters then get
  // the parameters' values). Each rank reads and keeps its part.
  // Collective: all ranks call it with the same state.
  // Throws: CheckpointError that begins with `source`; then nothing has changed.
  void load_state(const SlicedTensors& state, const std::string& source);

  // This rank's parts of the parameters, by name, like own_state() for the state; units stay away.
  SlicedTensors own_parameters() const;
  // All parameters on rank 0, in the host's memory, a bucket at a time; empty on the other ranks.
  // Collective: all ranks call it.
  NamedTensors parameters_on_root();
  // Loads values by name: those that own_parameters() of any number of ranks have written, or a
  // model's file. Each rank reads its parts only. Call it between steps.
  // Collective: all ranks call it.
  // Throws: CheckpointError that begins with `source`, where one is missing or has another shape;
  // then nothing has changed.
  void load_parameters(const SlicedTensors& values, const std::string& source);
  // No backward will follow the forwards computed so far. Called on all ranks.
  void forget_forwards();

  // This rank's own state as bytes (uint8, 1-D): its parts of the parameters, masters and moments,
  // and the number of their steps, without options. It is for a run that goes back to it, or whose
  // rank is replaced (recover/rollback_recovery.h). It reuses `memory`, an earlier share that is no
  // longer needed, where that is large enough. Call it between steps. Does not communicate.
  at::Tensor share(at::Tensor memory = {}) const;
  // The size of share(), and share() into memory of that size.
  int64_t share_bytes() const;
  void write_share(const at::Tensor& into) const;
  // Restores the share of the rank with this number among as many, for the same parameters and
  // options; returns when all ranks' parts are restored. Call it between steps.
  // Collective: all ranks call it.
  // Throws: DataError for bytes of another optimizer; then nothing has changed here, and the others
  // wait.
  void restore_share(const at::Tensor& share);

  // Elements of state that this rank keeps, including padding.
  int64_t state_numel() const;
  size_t bucket_count() const;  // of this optimizer
  // Bytes that this rank holds now.
  ZeroMemory memory() const;
  // plan_memory() of this optimizer, on these ranks.
  ZeroMemory planned_memory() const;
  // How the policy divided the parameters, for display: one line per rule, with the tensors and
  // bytes that it selected.
  const std::string& sharding() const { return sharding_; }
  // The cost of averaging and stepping so far, in seconds.
  ZeroTimes times() const;
  CommunicatorStats stats() const;  // of its own communicator
  // Expires with the optimizer, for owners of a pointer to it.
  std::weak_ptr<const void> lifetime() const { return life_; }

 private:
  ZeroAlgorithm defaults_;
  std::string sharding_;
  std::shared_ptr<const void> life_ = std::make_shared<char>();
  std::shared_ptr<internal::ZeroState> state_;
};

}  // namespace lockstep::inline v0
