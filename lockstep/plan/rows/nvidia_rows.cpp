// NeMo 24.07, Megatron Bridge 25.11 and Automodel on H100 and GB300; MLPerf; Llama 3's table 4.
#include "lockstep/plan/rows/internal/row_groups.h"

namespace lockstep::inline v0::plan::internal {
namespace {

struct NvidiaRow {
  const char* model;
  int gpus;
  int64_t batch, micro, sequence;
  int tensor, pipe, context, chunks, expert;
  double tokens;  // tokens/s of a GPU
  bool fitted = false;
  Precision precision = Precision::kFloat8;
  int zero = 1;
};

// Tokens of a document of SQuAD, of which their sequences are packed: a paragraph with its question and answer.
constexpr int64_t kQuestion = 256;

std::vector<int64_t> padded_cut(const ModelShape& model, int chunks) {
  // Where layers do not divide, the embeddings and the head stand for one each, or the last chunk has the head alone.
  if (model.layers % chunks == 0) return {};
  const int64_t each = (model.layers + chunks - 1) / chunks;
  std::vector<int64_t> cut(static_cast<size_t>(chunks), each);
  int64_t spare = each * chunks - model.layers;
  while (spare > 0) {
    for (const size_t end : {cut.size() - 1, size_t{0}}) {
      if (spare == 0 || cut[end] == 0) continue;
      --cut[end];
      --spare;
    }
    if (cut.front() == 0 && cut.back() == 0) break;
  }
  for (size_t i = 1; spare > 0; ++i, --spare) --cut[i];
  return cut;
}

PublishedRow row_of(const NvidiaRow& r, const char* source, const char* machine,
                    const char* stack) {
  PublishedRow row{
      .source = source, .model = known_model(r.model), .machine = machine, .stack = stack};
  Layout& layout = row.layout;
  layout.data = r.gpus / (r.tensor * r.pipe * r.context);
  layout.pipe = r.pipe;
  layout.context = r.context;
  layout.tensor = r.tensor;
  layout.expert = r.expert;
  layout.experts_folded = r.expert > 1;
  layout.order = pipe_first();
  layout.chunks = r.chunks;
  layout.schedule = r.chunks > 1 ? "interleaved" : "1f1b";
  layout.zero = r.zero;
  layout.micro_batch = r.micro;
  layout.global_batch = r.batch;
  layout.sequence = r.sequence;
  layout.precision = r.precision;
  layout.gradient_bytes = 4;
  layout.divides_rows = r.tensor > 1;
  if (r.pipe > 1) layout.cut = padded_cut(row.model, r.pipe * r.chunks);
  row.model.dropout = false;
  row.step = step_of(r.tokens, layout);
  row.fitted = r.fitted;
  row.label = std::string(r.model) + ", " + machine + " x " + std::to_string(r.gpus);
  return row;
}

void add_nemo(std::vector<PublishedRow>& rows) {
  const char* const source = "NeMo 24.07";
  for (const NvidiaRow& r : {NvidiaRow{"gpt3-5b", 64, 2048, 4, 2048, 1, 1, 1, 1, 1, 22521},
                             NvidiaRow{"gpt3-20b", 64, 256, 2, 2048, 2, 1, 1, 1, 1, 5851},
                             NvidiaRow{"gpt3-175b", 128, 256, 1, 2048, 4, 8, 1, 6, 1, 726, true},
                             NvidiaRow{"gpt3-175b", 512, 2048, 2, 2048, 4, 8, 1, 6, 1, 782},
                             NvidiaRow{"llama2-7b", 8, 128, 1, 4096, 1, 1, 1, 1, 1, 16847, true},
                             NvidiaRow{"llama2-13b", 16, 128, 1, 4096, 1, 4, 1, 10, 1, 8646},
                             NvidiaRow{"llama2-70b", 64, 128, 1, 4096, 4, 4, 1, 20, 1, 1707},
                             NvidiaRow{"nemotron-8b", 64, 256, 4, 4096, 2, 1, 1, 1, 1, 12701},
                             NvidiaRow{"nemotron-22b", 64, 256, 2, 4096, 2, 4, 1, 10, 1, 4256},
                             NvidiaRow{"nemotron-340b", 128, 32, 1, 4096, 8, 8, 1, 12, 1, 322},
                             NvidiaRow{"llama3-8b", 8, 128, 1, 8192, 1, 1, 2, 1, 1, 12036, true},
                             NvidiaRow{"llama3-70b", 64, 128, 1, 8192, 4, 4, 2, 5, 1, 1533}})
    rows.push_back(row_of(r, source, "h100", "nemo"));
  for (const NvidiaRow& r : {NvidiaRow{"llama2-7b", 8, 32, 1, 4096, 1, 1, 1, 1, 1, 17120},
                             NvidiaRow{"llama2-13b", 8, 32, 1, 4096, 1, 4, 1, 10, 1, 9741},
                             NvidiaRow{"llama2-70b", 16, 32, 1, 4096, 4, 4, 1, 20, 1, 1833}}) {
    rows.push_back(row_of(r, "NeMo 24.07, finetuning", "h100", "nemo"));
    rows.back().label += ", all parameters";
    rows.back().layout.attended = kQuestion;
    rows.back().assumed = r.pipe > 1 ? "as many chunks as in pretraining" : "";
  }
  for (const NvidiaRow& r : {NvidiaRow{"llama2-7b", 8, 32, 1, 4096, 1, 1, 1, 1, 1, 25206},
                             NvidiaRow{"llama2-13b", 8, 32, 1, 4096, 1, 1, 1, 1, 1, 14161},
                             NvidiaRow{"llama2-70b", 8, 32, 1, 4096, 2, 4, 1, 20, 1, 2557}}) {
    rows.push_back(row_of(r, "NeMo 24.07, LoRA", "h100", "nemo"));
    rows.back().layout.adapter_rank = 32;
    rows.back().layout.attended = kQuestion;
    rows.back().label += ", LoRA";
  }
}

void add_bridge(std::vector<PublishedRow>& rows) {
  const char* const source = "Megatron Bridge 25.11";
  using enum Precision;
  for (const NvidiaRow& r :
       {NvidiaRow{"llama3-8b", 8, 128, 1, 8192, 1, 1, 1, 1, 1, 14451, true, kFloat8, 3},
        NvidiaRow{"llama3-70b", 64, 128, 1, 8192, 4, 8, 1, 5, 1, 1602},
        NvidiaRow{"llama3-405b", 1024, 512, 1, 8192, 8, 8, 2, 8, 1, 292}})
    rows.push_back(row_of(r, source, "h100", "bridge"));
  for (const NvidiaRow& r :
       {NvidiaRow{"gpt-oss-120b", 64, 512, 4, 4096, 1, 4, 1, 1, 8, 5630, false, kBFloat16},
        NvidiaRow{"qwen3-30b-a3b", 16, 512, 2, 4096, 1, 2, 1, 24, 8, 5275},
        NvidiaRow{"qwen3-235b-a22b", 256, 2048, 1, 4096, 2, 8, 1, 4, 32, 1204, true, kBFloat16},
        NvidiaRow{"deepseek-v3", 1024, 8192, 1, 4096, 2, 8, 1, 4, 64, 1297, true}})
    rows.push_back(row_of(r, source, "h100", "bridge-experts"));
  for (const NvidiaRow& r :
       {NvidiaRow{"llama3-8b", 8, 128, 2, 8192, 1, 1, 1, 1, 1, 37556, true},
        NvidiaRow{"llama3-70b", 64, 256, 2, 8192, 1, 1, 1, 1, 1, 4520, false, kFloat8, 3},
        NvidiaRow{"llama3-405b", 256, 1536, 1, 8192, 2, 8, 2, 4, 1, 999, true}})
    rows.push_back(row_of(r, source, "gb300", "bridge-gb300"));
}

void add_automodel(std::vector<PublishedRow>& rows) {
  struct Sharded {
    const char* model;
    int gpus;
    int64_t batch, micro;  // of one flush of the pipeline
    int pipe, expert, chunks;
    double step, flushes;
    bool fitted;
  };
  for (const Sharded& r : {Sharded{"deepseek-v3", 1024, 2048, 1, 4, 64, 8, 37.87, 4, false},
                           Sharded{"deepseek-v3", 256, 512, 1, 4, 64, 8, 8.18, 1, true},
                           Sharded{"kimi-k2", 256, 256, 1, 8, 32, 4, 8.86, 2, false},
                           Sharded{"qwen3-30b-a3b", 8, 512, 4, 1, 8, 1, 21.773, 1, true},
                           Sharded{"gpt-oss-20b", 8, 256, 2, 1, 8, 1, 10.04, 1, false},
                           Sharded{"gpt-oss-120b", 64, 512, 2, 1, 64, 1, 4.30, 1, false},
                           Sharded{"moonlight-16b", 8, 256, 2, 1, 8, 1, 5.724, 1, false}}) {
    PublishedRow row = row_of({r.model, r.gpus, r.batch, r.micro, 4096, 1, r.pipe, 1, r.chunks,
                               r.expert, 1, r.fitted, Precision::kBFloat16, 3},
                              "NeMo Automodel", "h100", "automodel");
    row.layout.gradient_bytes = 0;
    row.layout.reshard = r.pipe == 1;
    row.step = r.step / r.flushes;
    row.assumed = "nothing recomputed, balanced experts";
    rows.push_back(row);
  }
}

void add_llama3(std::vector<PublishedRow>& rows) {
  struct Large {
    int gpus, context, data;
    int64_t sequence, batch;
    double tflops;
    bool fitted;
  };
  for (const Large& r :
       {Large{8192, 1, 64, 8192, 32, 430, true}, Large{16384, 1, 128, 8192, 16, 400, false},
        Large{16384, 16, 8, 131072, 16, 380, false}}) {
    PublishedRow row = row_of({"llama3-405b", r.gpus, r.batch * r.data, 1, r.sequence, 8, 16,
                               r.context, 8, 1, 1, r.fitted, Precision::kBFloat16, 2},
                              "arXiv:2407.21783 table 4", "h100", "llama3");
    row.layout.order = {"data", "pipe", "expert", "context", "tensor"};
    row.label += ", " + std::to_string(r.sequence) + " tokens";
    row.assumed = "micro-batches of 1, a layer a chunk, the causal half of the scores counted";
    const double flops = flops_per_token(row.model, r.sequence, flop_convention("6n+causal"));
    row.step = step_of(r.tflops * 1e12 / flops, row.layout);
    rows.push_back(row);
  }
}

}  // namespace

std::vector<PublishedRow> nvidia_rows() {
  std::vector<PublishedRow> rows;
  add_nemo(rows);
  add_bridge(rows);
  add_automodel(rows);
  add_llama3(rows);
  PublishedRow eos =
      row_of({"gpt3-175b", 10752, 2688, 1, 2048, 4, 8, 1, 6, 1, 1}, "MLPerf (EOS)", "h100", "nemo");
  eos.step = 1.07;
  eos.assumed = "micro-batches of 1, six chunks a stage";
  rows.push_back(eos);
  return rows;
}

}  // namespace lockstep::inline v0::plan::internal
