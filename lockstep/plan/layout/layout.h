// Layout: how a training job is divided among ranks and what each of them keeps. Data; pure.
//
//   plan::Layout layout{.data = 8, .pipe = 4, .tensor = 2, .global_batch = 512};
//   plan::check(layout, model);  // throws what does not go, in one line
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lockstep/core/export.h"
#include "lockstep/plan/machine/machine.h"
#include "lockstep/plan/model/model_shape.h"

namespace lockstep::inline v0::plan {

// The activations that a layer's forward leaves for its backward.
enum class Activations : uint8_t {
  kKept,        // everything
  kSelective,   // all but attention's scores (arXiv:2205.05198); one kernel of attention keeps none
  kAlternate,   // every second product's output, and attention's (torchtitan's selective)
  kRecomputed,  // the layer's input alone
};
// The algorithm that updates the parameters; its state is 8, 4 and 0 bytes per parameter.
enum class Optimizer : uint8_t { kAdamW, kMomentum, kSgd };

// "kept", "selective", "alternate", "recomputed"; "adamw", "momentum", "sgd". The parsers throw InvalidArgument with the names.
LOCKSTEP_API const char* name_of(Activations activations);
LOCKSTEP_API Activations parse_activations(std::string_view text);
LOCKSTEP_API const char* name_of(Optimizer optimizer);
LOCKSTEP_API Optimizer parse_optimizer(std::string_view text);

struct LOCKSTEP_API Layout {
  // Ranks along each axis (products/parallelism.h). Their product is the job.
  int data = 1, pipe = 1, context = 1, expert = 1, tensor = 1;
  // The axes from the outermost to the innermost, along which neighbours are consecutive ranks.
  std::vector<std::string> order = {"data", "pipe", "context", "expert", "tensor"};
  // Expert is not an axis of its own: experts are divided among the ranks of data, context and tensor of a stage, and an
  // expert's matrices are whole (Megatron's way). Then expert divides data * context * tensor.
  bool experts_folded = false;

  int chunks = 1;                 // of a stage
  std::string schedule = "1f1b";  // schedule_names()
  // Layers of each chunk of the pipeline. Empty: as even as can be, the first chunks longer.
  std::vector<int64_t> cut = {};

  // The ZeRO stage: what the ranks that average a parameter's gradient divide among them. 1: the
  // optimizer's state; 2: gradients, too; 3: parameters, too (fully sharded).
  int zero = 0;
  int shard_ranks = 0;  // they divide it in groups of so many (hybrid); 0: all of them
  bool reshard = true;  // with stage 3: parameters are gathered again for the backward

  int64_t micro_batch = 1;   // sequences of one rank of data
  int64_t global_batch = 1;  // sequences of a step
  int64_t sequence = 2048;   // tokens, of all ranks of context together
  int64_t attended =
      0;  // tokens of a document, where a sequence is packed of several; 0: one document

  Precision precision = Precision::kBFloat16;
  // Parameters are of 16 bits and the optimizer keeps masters of 32; false: they are of 32 bits and are cast where
  // they are used, or, with `float32`, as they are.
  bool masters = true;
  int gradient_bytes =
      0;  // of an element that is accumulated and averaged; 0: of the parameters' precision
  Optimizer optimizer = Optimizer::kAdamW;
  Activations activations = Activations::kKept;
  bool divides_rows =
      false;  // sequence parallelism: what tensor does not divide is divided by rows
  // Only factors of this rank beside each matrix are trained (LoRA); 0: everything is.
  int64_t adapter_rank = 0;

  int64_t ranks() const;          // of the job
  int64_t batch_ranks() const;    // that have different sequences
  int64_t micro_batches() const;  // of a step, of one rank
  int64_t rows() const;           // tokens of a micro-batch on one rank
  // The ranks that average the gradient of a parameter; of an expert's.
  int64_t replicas() const;
  int64_t expert_replicas() const;  // the same of an expert's parameters
  // The ranks among which an expert's matrices are divided.
  int expert_tensor() const { return experts_folded ? 1 : tensor; }
  bool operator==(const Layout&) const = default;
};

// Where the ranks of an axis are: "data", "pipe", "context", "expert", "tensor", and "replicas", those that average
// gradients (data, context and, unless folded, expert).
LOCKSTEP_API GroupPlace place_of(const Layout& layout, std::string_view axis, int ranks_per_host);

// Bytes of one parameter's state before it is divided.
struct StateBytes {
  double parameter = 0, gradient = 0, optimizer = 0;
  // Bytes of a parameter, all together.
  double total() const { return parameter + gradient + optimizer; }
};
LOCKSTEP_API StateBytes state_bytes(const Layout& layout);

// The layers of each chunk as Lockstep's own pipelines cut a model (lm_cut.h).
LOCKSTEP_API std::vector<int64_t> lockstep_cut(const ModelShape& model, int chunks);

// The layers of each chunk of the pipeline, in order: layout.cut, or the even one.
LOCKSTEP_API std::vector<int64_t> chunk_layers(const Layout& layout, const ModelShape& model);

// Throws InvalidArgument in one line that says what to do: sizes below 1; a batch that does not divide; more chunks than
// layers; heads, inner columns, tokens or experts that do not divide; an unknown schedule, or one that does not take so many
// micro-batches; a ZeRO stage that does not exist.
LOCKSTEP_API void check(const Layout& layout, const ModelShape& model);

// "data=8 pipe=4 tensor=2, 1f1b, zero 1, micro-batch 1 x 64, recomputed": axes of one rank are left out.
LOCKSTEP_API std::string to_string(const Layout& layout);

}  // namespace lockstep::inline v0::plan
