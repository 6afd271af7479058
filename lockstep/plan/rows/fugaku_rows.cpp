// Fugaku: one A64FX a node, GPT in 32 bits by DeepSpeed's Megatron (DeepSpeedFugaku, experiments/124m_13b_benchmarking).
#include "lockstep/plan/rows/internal/row_groups.h"

namespace lockstep::inline v0::plan::internal {
namespace {

struct FugakuRow {
  const char* size;
  int tensor, pipe, nodes;
  int64_t micro, batch, sequence;
  bool recomputed;
  double step, mib;
  bool fitted = false, memory_fitted = false;
};

ModelShape model_of(const std::string& size, int64_t positions) {
  // The vocabulary of GPT-2, padded to a multiple of 128 for each rank of tensor.
  constexpr int64_t kVocab = 50688;
  if (size == "124M") return gpt_model("GPT 124M", 12, 768, 12, kVocab, positions);
  if (size == "350M") return gpt_model("GPT 350M", 24, 1024, 16, kVocab, positions);
  if (size == "1.3B") return gpt_model("GPT 1.3B", 24, 2048, 32, kVocab, positions);
  return gpt_model("GPT 30B", 48, 7168, 56, kVocab, positions);
}

}  // namespace

std::vector<PublishedRow> fugaku_rows() {
  std::vector<PublishedRow> rows;
  for (const FugakuRow& r : {
           FugakuRow{"1.3B", 4, 1, 4, 1, 1024, 1024, false, 2533.0, 18870, true},
           FugakuRow{"1.3B", 4, 1, 256, 1, 1024, 1024, false, 43.3, 19862},
           FugakuRow{"1.3B", 4, 1, 2048, 1, 1024, 1024, false, 8.6, 20200},
           FugakuRow{"1.3B", 4, 1, 4096, 1, 1024, 1024, false, 5.2, 16375, true},
           FugakuRow{"1.3B", 1, 1, 1, 1, 1024, 1024, true, 11727.9, 28407, true},
           FugakuRow{"1.3B", 4, 1, 4, 2, 1024, 1024, true, 3231.4, 10481},
           FugakuRow{"124M", 1, 1, 1, 1, 1024, 1024, true, 2157.3, 4103, false, true},
           FugakuRow{"124M", 1, 1, 64, 1, 1024, 1024, true, 36.1, 4490},
           FugakuRow{"124M", 1, 1, 256, 1, 1024, 1024, true, 9.9, 4588},
           FugakuRow{"124M", 1, 1, 512, 1, 1024, 1024, true, 5.4, 4552},
           FugakuRow{"124M", 1, 1, 1, 2, 1024, 1024, true, 1552.4, 5088, true},
           FugakuRow{"124M", 1, 1, 1, 4, 1024, 1024, true, 1649.9, 5827, false, true},
           FugakuRow{"124M", 1, 1, 1, 1, 1024, 1024, false, 1489.7, 7718, true, true},
           FugakuRow{"124M", 1, 1, 512, 1, 1024, 1024, false, 4.2, 7789},
           FugakuRow{"124M", 1, 1, 512, 1, 1024, 2048, false, 10.4, 17042},
           FugakuRow{"350M", 1, 1, 4, 1, 512, 1024, true, 371.4, 0},
           FugakuRow{"350M", 1, 1, 512, 1, 512, 1024, true, 6.7, 0},
           FugakuRow{"350M", 2, 1, 1024, 1, 512, 1024, true, 3.2, 0},
           FugakuRow{"350M", 8, 1, 4096, 1, 512, 1024, true, 2.1, 4496},
           FugakuRow{"30B", 1, 48, 48, 1, 1536, 2048, true, 17212.8, 29139},
           FugakuRow{"30B", 4, 48, 192, 1, 1536, 2048, true, 3720.0, 16623},
           FugakuRow{"30B", 4, 48, 3072, 1, 1536, 2048, true, 313.6, 16633},
       }) {
    PublishedRow row{
        .source = "DeepSpeedFugaku",
        .model = model_of(r.size, r.sequence),
        .layout = {.data = r.nodes / r.tensor / r.pipe,
                   .pipe = r.pipe,
                   .tensor = r.tensor,
                   .order = pipe_first(),
                   .micro_batch = r.micro,
                   .global_batch = r.batch,
                   .sequence = r.sequence,
                   .precision = Precision::kFloat32,
                   .activations = r.recomputed ? Activations::kRecomputed : Activations::kKept},
        .machine = "a64fx",
        .stack = "fugaku",
        .step = r.step,
        .memory = r.mib * kMiB,
        .fitted = r.fitted,
        .memory_fitted = r.memory_fitted,
        .assumed =
            std::string(r.size) == "350M" ? "a global batch of 512 in all rows of 350M" : ""};
    row.label = row.model.name + ", " + std::to_string(r.nodes) + " nodes, tensor " +
                std::to_string(r.tensor) + (r.pipe > 1 ? ", pipe " + std::to_string(r.pipe) : "") +
                ", micro-batch " + std::to_string(r.micro) + ", " + std::to_string(r.sequence) +
                " tokens" + (r.recomputed ? ", recomputed" : "");
    rows.push_back(row);
  }
  return rows;
}

}  // namespace lockstep::inline v0::plan::internal
