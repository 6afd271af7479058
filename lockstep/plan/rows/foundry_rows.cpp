// llm-foundry: MPT models, fully sharded, sequences of 2048 unless said (scripts/train/benchmarking/README.md).
#include "lockstep/plan/rows/internal/row_groups.h"

namespace lockstep::inline v0::plan::internal {
namespace {

struct FoundryRow {
  const char* model;
  int gpus;
  int64_t micro, steps;  // a rank's sequences at a time, and how often a step
  bool recomputed;
  double tokens;  // tokens/s of a GPU
  bool fitted = false;
  int64_t sequence = 2048;
  bool reshard = true;
};

void add_foundry(const std::vector<FoundryRow>& table, const char* machine, const char* stack,
                 bool pure, std::vector<PublishedRow>& rows) {
  for (const FoundryRow& r : table) {
    PublishedRow row{
        .source = "llm-foundry",
        .label = std::string(r.model) + ", " + machine + " x " + std::to_string(r.gpus),
        .model = known_model(std::string("mpt-") + r.model),
        .layout = {.data = r.gpus,
                   .zero = 3,
                   .reshard = r.reshard,
                   .micro_batch = r.micro,
                   .global_batch = r.micro * r.steps * r.gpus,
                   .sequence = r.sequence,
                   .masters = false,
                   .gradient_bytes = pure ? 2 : 4,
                   .activations = r.recomputed ? Activations::kRecomputed : Activations::kKept},
        .machine = machine,
        .stack = stack,
        .fitted = r.fitted};
    row.model.positions = r.sequence;
    if (r.sequence != 2048) row.label += ", " + std::to_string(r.sequence) + " tokens";
    row.step = step_of(r.tokens, row.layout);
    rows.push_back(row);
  }
}

}  // namespace

std::vector<PublishedRow> foundry_rows() {
  std::vector<PublishedRow> rows;
  add_foundry({{"70b", 512, 8, 1, true, 1007},
               {"70b", 256, 8, 1, true, 1035},
               {"70b", 128, 8, 1, true, 1058, true},
               {"70b", 64, 8, 4, true, 1039},
               {"70b", 32, 2, 16, true, 882},
               {"30b", 512, 8, 1, true, 2115},
               {"30b", 128, 8, 1, true, 2199},
               {"30b", 32, 14, 3, true, 2308},
               {"30b", 8, 3, 21, true, 2002},
               {"13b", 512, 16, 1, true, 4952},
               {"13b", 128, 16, 1, true, 5080},
               {"13b", 64, 2, 1, false, 4800},
               {"13b", 8, 2, 1, false, 4792, true},
               {"7b", 512, 6, 1, false, 9670},
               {"7b", 128, 6, 1, false, 10475},
               {"7b", 8, 6, 1, false, 10643, true},
               {"7b", 8, 64, 2, true, 10203, true, 1024},
               {"7b", 8, 16, 2, true, 8611, false, 4096},
               {"7b", 8, 8, 2, true, 6935, false, 8192},
               {"7b", 8, 2, 2, true, 3318, false, 32768},
               {"7b", 8, 1, 2, true, 1956, true, 65536},
               {"3b", 512, 8, 1, false, 21664, false, 2048, false},
               {"3b", 64, 6, 3, false, 22525},
               {"3b", 16, 10, 3, false, 24142},
               {"3b", 8, 5, 6, false, 20964, false, 4096},
               {"1b", 512, 12, 1, false, 39837, false, 2048, false},
               {"1b", 64, 20, 1, false, 44402},
               {"1b", 8, 14, 1, false, 45455, true}},
              "h100", "llm-foundry", false, rows);
  add_foundry({{"70b", 64, 8, 4, true, 410}, {"70b", 32, 2, 16, true, 373}}, "a100-80",
              "llm-foundry-a100", true, rows);
  add_foundry({{"30b", 8, 3, 21, true, 916, true},
               {"13b", 8, 2, 3, false, 2262, true},
               {"13b", 8, 10, 3, true, 2060, false, 4096},
               {"7b", 8, 6, 2, false, 4641},
               {"7b", 8, 64, 2, true, 4357, true, 1024},
               {"7b", 8, 8, 2, true, 3206, false, 8192},
               {"7b", 8, 1, 2, true, 1013, true, 65536},
               {"3b", 8, 10, 2, false, 10811},
               {"1b", 8, 14, 4, false, 20513},
               {"760m", 8, 24, 2, false, 32434},
               {"350m", 8, 32, 2, false, 58782},
               {"125m", 8, 40, 2, false, 142830, true}},
              "a100-80", "llm-foundry-a100", false, rows);
  add_foundry({{"70b", 128, 4, 1, true, 376},
               {"70b", 64, 2, 1, true, 276},
               {"30b", 128, 6, 1, true, 865},
               {"30b", 32, 4, 1, true, 857},
               {"13b", 128, 16, 1, true, 1972},
               {"13b", 8, 4, 16, true, 1668},
               {"7b", 128, 18, 1, true, 3623},
               {"7b", 8, 12, 4, true, 3679},
               {"3b", 128, 6, 1, false, 9538},
               {"1b", 128, 10, 1, false, 18647}},
              "a100-40", "llm-foundry-a100", true, rows);
  return rows;
}

}  // namespace lockstep::inline v0::plan::internal
