// torchtitan: Llama 3.1 on H100 with 96 GB at 500 W, time and memory (benchmarks/llama3_h100_202412_torchtitan.md).
#include "lockstep/plan/rows/internal/row_groups.h"

namespace lockstep::inline v0::plan::internal {
namespace {

struct TitanRow {
  const char* model;
  const char* what;
  int data, context, tensor, pipe, chunks;
  int64_t micro, batch, sequence;
  Activations activations;
  bool float8;
  const char* stack;
  double tokens, gib;
  bool fitted = false, memory_fitted = false;
};

}  // namespace

std::vector<PublishedRow> titan_rows() {
  using enum Activations;
  std::vector<PublishedRow> rows;
  const char *const eager = "torchtitan-eager", *const compiled = "torchtitan";
  for (const TitanRow& r : {
           TitanRow{"llama3-8b", "FSDP 8", 8, 1, 1, 1, 1, 2, 16, 8192, kAlternate, false, eager,
                    5762, 82.4, true},
           TitanRow{"llama3-8b", "FSDP 8, compiled", 8, 1, 1, 1, 1, 2, 16, 8192, kAlternate, false,
                    compiled, 6667, 77.0, true, true},
           TitanRow{"llama3-8b", "FSDP 8, float8", 8, 1, 1, 1, 1, 2, 16, 8192, kAlternate, true,
                    compiled, 8532, 76.8},
           TitanRow{"llama3-8b", "FSDP 128", 128, 1, 1, 1, 1, 2, 256, 8192, kAlternate, false,
                    eager, 5605, 67.0},
           TitanRow{"llama3-8b", "FSDP 128, compiled", 128, 1, 1, 1, 1, 2, 256, 8192, kAlternate,
                    false, compiled, 6514, 62.0},
           TitanRow{"llama3-8b", "FSDP 128, float8", 128, 1, 1, 1, 1, 2, 256, 8192, kAlternate,
                    true, compiled, 8380, 61.8},
           TitanRow{"llama3-8b", "FSDP 8 CP 1, float8", 8, 1, 1, 1, 1, 1, 8, 32768, kRecomputed,
                    true, compiled, 3890, 83.9},
           TitanRow{"llama3-8b", "FSDP 4 CP 2, float8", 4, 2, 1, 1, 1, 1, 4, 65536, kRecomputed,
                    true, compiled, 2540, 84.2},
           TitanRow{"llama3-8b", "FSDP 2 CP 4, float8", 2, 4, 1, 1, 1, 1, 2, 131072, kRecomputed,
                    true, compiled, 1071, 84.0, true},
           TitanRow{"llama3-8b", "FSDP 1 CP 8, float8", 1, 8, 1, 1, 1, 1, 1, 262144, kRecomputed,
                    true, compiled, 548, 84.5},
           TitanRow{"llama3-70b", "FSDP 32 TP 8, float8", 32, 1, 8, 1, 1, 16, 512, 8192,
                    kRecomputed, true, compiled, 829, 71.9, true},
           TitanRow{"llama3-405b", "FSDP 8 TP 8 PP 8, 1F1B", 8, 1, 8, 8, 1, 4, 256, 8192,
                    kRecomputed, true, compiled, 100, 82.5},
           TitanRow{"llama3-405b", "FSDP 8 TP 8 PP 8, interleaved", 8, 1, 8, 8, 2, 4, 256, 8192,
                    kRecomputed, true, compiled, 128, 72.7},
           TitanRow{"llama3-405b", "FSDP 8 TP 8 PP 8 CP 1", 8, 1, 8, 8, 1, 1, 64, 32768,
                    kRecomputed, true, compiled, 76, 75.3},
           TitanRow{"llama3-405b", "FSDP 4 TP 8 PP 8 CP 2", 4, 2, 8, 8, 1, 1, 32, 65536,
                    kRecomputed, true, compiled, 47, 75.9},
           TitanRow{"llama3-405b", "FSDP 2 TP 8 PP 8 CP 4", 2, 4, 8, 8, 1, 1, 16, 131072,
                    kRecomputed, true, compiled, 31, 77.1},
           TitanRow{"llama3-405b", "FSDP 1 TP 8 PP 8 CP 8", 1, 8, 8, 8, 1, 1, 8, 262144,
                    kRecomputed, true, compiled, 16, 84.9},
       }) {
    PublishedRow row{.source = "torchtitan 2024-12",
                     .label = std::string(r.model) + ", " + r.what,
                     .model = known_model(r.model),
                     .layout = {.data = r.data,
                                .pipe = r.pipe,
                                .context = r.context,
                                .tensor = r.tensor,
                                .order = pipe_first(),
                                .chunks = r.chunks,
                                .schedule = r.chunks > 1 ? "interleaved" : "1f1b",
                                .zero = 3,
                                .reshard = r.pipe == 1,
                                .micro_batch = r.micro,
                                .global_batch = r.batch,
                                .sequence = r.sequence,
                                .precision = r.float8 ? Precision::kFloat8 : Precision::kBFloat16,
                                .masters = false,
                                .activations = r.activations,
                                .divides_rows = r.tensor > 1},
                     .machine = "h100-96",
                     .stack = r.stack,
                     .memory = r.gib * kGiB,
                     .fitted = r.fitted,
                     .memory_fitted = r.memory_fitted};
    if (r.pipe > 1) {
      // 126 layers: the first and the last chunk have one fewer.
      std::vector<int64_t> cut(static_cast<size_t>(r.pipe * r.chunks), 128 / (r.pipe * r.chunks));
      --cut.front();
      --cut.back();
      row.layout.cut = cut;
      row.assumed = "eight micro-batches, two chunks where interleaved, cut 15, 16, ..., 15";
    }
    row.step = step_of(r.tokens, row.layout);
    rows.push_back(row);
  }
  return rows;
}

}  // namespace lockstep::inline v0::plan::internal
