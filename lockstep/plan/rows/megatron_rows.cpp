// Megatron-LM on A100: Narayanan et al. 2021, Korthikanti et al. 2022, Smith et al. 2022; and MegaScale.
#include "lockstep/plan/rows/internal/row_groups.h"

namespace lockstep::inline v0::plan::internal {
namespace {

std::string billions(double count) {
  std::string text = std::to_string(count);
  return text.substr(0, text.find('.') + 2) + "B";
}

ModelShape gpt(int64_t layers, int64_t hidden, int64_t heads) {
  ModelShape model = gpt_model("gpt", layers, hidden, heads, 51200, 2048);
  model.name = "GPT " + billions(static_cast<double>(parameter_count(model)) / 1e9);
  return model;
}

// TFLOP/s as the paper counts them, to seconds.
double step_from(double tflops, const ModelShape& model, const Layout& layout) {
  const double flops = flops_per_token(model, layout.sequence, flop_convention("megatron"), true) *
                       static_cast<double>(layout.global_batch * layout.sequence);
  return flops / (tflops * 1e12 * static_cast<double>(layout.ranks()));
}

Layout megatron(int data, int pipe, int tensor, int64_t micro, int64_t batch, int chunks) {
  return {.data = data,
          .pipe = pipe,
          .tensor = tensor,
          .order = pipe_first(),
          .chunks = chunks,
          .schedule = chunks > 1 ? "interleaved" : "1f1b",
          .micro_batch = micro,
          .global_batch = batch,
          .sequence = 2048,
          .gradient_bytes = 4,
          .activations = Activations::kRecomputed};
}

void add_table_1(std::vector<PublishedRow>& rows) {
  struct MegatronRow {
    int64_t layers, hidden, heads;
    int tensor, pipe, data;
    int64_t micro, batch;
    int chunks;
    double tflops;
    bool fitted;
  };
  // Micro-batches and chunks: Megatron-LM, examples/sc21/run_table_1.sh.
  for (const MegatronRow& r : {MegatronRow{24, 2304, 24, 1, 1, 32, 16, 512, 1, 137, true},
                               MegatronRow{30, 3072, 32, 2, 1, 32, 16, 512, 1, 138, false},
                               MegatronRow{36, 4096, 32, 4, 1, 32, 16, 512, 1, 142, false},
                               MegatronRow{40, 6144, 48, 8, 1, 32, 8, 1024, 1, 135, true},
                               MegatronRow{48, 8192, 64, 8, 2, 32, 4, 1536, 1, 138, false},
                               MegatronRow{60, 10240, 80, 8, 4, 32, 2, 1792, 3, 140, false},
                               MegatronRow{80, 12288, 96, 8, 8, 24, 2, 2304, 2, 148, true},
                               MegatronRow{96, 16384, 128, 8, 16, 15, 1, 2160, 2, 155, false},
                               MegatronRow{105, 20480, 128, 8, 35, 9, 1, 2520, 3, 163, false},
                               MegatronRow{128, 25600, 160, 8, 64, 6, 1, 3072, 1, 163, false}}) {
    PublishedRow row{.source = "arXiv:2104.04473 table 1",
                     .model = gpt(r.layers, r.hidden, r.heads),
                     .layout = megatron(r.data, r.pipe, r.tensor, r.micro, r.batch, r.chunks),
                     .machine = "a100-80",
                     .stack = "megatron-2021",
                     .fitted = r.fitted};
    row.step = step_from(r.tflops, row.model, row.layout);
    row.label = row.model.name + ", " + std::to_string(row.layout.ranks()) + " GPUs";
    rows.push_back(row);
  }
}

void add_table_2(std::vector<PublishedRow>& rows) {
  struct MegatronRow {
    int64_t layers, hidden, heads;
    int data, pipe, tensor;
    int64_t micro, batch;
    double tflops;
    bool zero, fitted;
  };
  for (const MegatronRow& r :
       {MegatronRow{96, 12288, 96, 384, 1, 1, 4, 1536, 144, true, true},
        MegatronRow{96, 12288, 96, 768, 1, 1, 2, 1536, 88, true, false},
        MegatronRow{96, 12288, 96, 1536, 1, 1, 1, 1536, 44, true, true},
        MegatronRow{105, 20480, 128, 640, 1, 1, 4, 2560, 138, true, false},
        MegatronRow{105, 20480, 128, 1120, 1, 1, 2, 2240, 98, true, false},
        MegatronRow{105, 20480, 128, 2240, 1, 1, 1, 2240, 48, true, false},
        MegatronRow{96, 12288, 96, 4, 12, 8, 1, 1536, 153, false, false},
        MegatronRow{96, 12288, 96, 8, 12, 8, 1, 1536, 149, false, false},
        MegatronRow{96, 12288, 96, 16, 12, 8, 1, 1536, 141, false, false},
        MegatronRow{105, 20480, 128, 2, 35, 8, 1, 2240, 171, false, false},
        MegatronRow{105, 20480, 128, 4, 35, 8, 1, 2240, 167, false, false},
        MegatronRow{105, 20480, 128, 8, 35, 8, 1, 2240, 159, false, false}}) {
    PublishedRow row{.source = "arXiv:2104.04473 table 2",
                     .model = gpt(r.layers, r.hidden, r.heads),
                     .layout = megatron(r.data, r.pipe, r.tensor, r.micro, r.batch, 1),
                     .machine = "a100-80",
                     .stack = r.zero ? "deepspeed-2021" : "megatron-2021",
                     .fitted = r.fitted,
                     .assumed = r.zero ? "" : "one chunk a stage"};
    if (r.zero) {
      row.layout.zero = 3;
      row.layout.gradient_bytes = 2;
    }
    row.step = step_from(r.tflops, row.model, row.layout);
    row.label = row.model.name + (r.zero ? ", ZeRO-3, " : ", PTD-P, ") +
                std::to_string(row.layout.ranks()) + " GPUs";
    rows.push_back(row);
  }
}

void add_korthikanti(std::vector<PublishedRow>& rows) {
  struct MegatronRow {
    const char* name;
    int64_t layers, hidden, heads;
    int pipe, chunks;
    int64_t micro, batch;
    double full, selective;
    bool fitted;
  };
  for (const MegatronRow& r :
       {MegatronRow{"22B", 48, 6144, 64, 1, 1, 4, 4, 1.42, 1.10, true},
        MegatronRow{"175B", 96, 12288, 96, 8, 3, 1, 64, 18.13, 13.75, false},
        MegatronRow{"530B", 105, 20480, 128, 35, 3, 1, 280, 49.05, 37.83, false},
        MegatronRow{"1T", 128, 25600, 160, 64, 1, 1, 512, 94.42, 71.49, false}}) {
    for (const bool selective : {false, true}) {
      PublishedRow row{.source = "arXiv:2205.05198",
                       .label = std::string(r.name) +
                                (selective ? ", selective, divided rows" : ", full recomputation"),
                       .model = gpt(r.layers, r.hidden, r.heads),
                       .layout = megatron(1, r.pipe, 8, r.micro, r.batch, r.chunks),
                       .machine = "a100-80",
                       .stack = "megatron-2022",
                       .step = selective ? r.selective : r.full,
                       .fitted = r.fitted};
      if (selective) {
        row.layout.activations = Activations::kSelective;
        row.layout.divides_rows = true;
      }
      rows.push_back(row);
    }
  }
}

void add_others(std::vector<PublishedRow>& rows) {
  for (const auto& [data, step] : {std::pair{8, 60.1}, std::pair{12, 44.4}}) {
    PublishedRow row{.source = "arXiv:2201.11990 (MT-NLG)",
                     .model = gpt(105, 20480, 128),
                     .layout = megatron(data, 35, 8, 1, 1920, 1),
                     .machine = "a100-80",
                     .stack = "mt-nlg",
                     .step = step,
                     .fitted = data == 8};
    row.label = "530B, " + std::to_string(row.layout.ranks()) + " GPUs";
    rows.push_back(row);
  }
  rows.push_back({.source = "arXiv:2402.15627 (MegaScale)",
                  .label = "175B, 12288 GPUs",
                  .model = gpt(96, 12288, 96),
                  .layout = megatron(192, 8, 8, 1, 6144, 6),
                  .machine = "a100-80",
                  .stack = "megascale",
                  .step = 6.34,
                  .assumed = "six chunks a stage, selective recomputation"});
  rows.back().layout.activations = Activations::kSelective;
  rows.back().layout.divides_rows = true;
  rows.back().layout.zero = 1;
}

}  // namespace

std::vector<PublishedRow> megatron_rows() {
  std::vector<PublishedRow> rows;
  add_table_1(rows);
  add_table_2(rows);
  add_korthikanti(rows);
  add_others(rows);
  return rows;
}

}  // namespace lockstep::inline v0::plan::internal
