#include <ATen/ops/full.h>

#include <map>
#include <nlohmann/json.hpp>
#include <optional>

#include "lockstep/comm/backend/types.h"
#include "lockstep/comm/objects.h"
#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"
#include "lockstep/parallel/pipeline/internal/agreement.h"
#include "lockstep/parallel/pipeline/internal/place.h"

namespace lockstep::inline v0 {
namespace internal {
namespace {

std::string stage_text(const Communicator& comm) {
  return "pipeline stage " + std::to_string(comm.rank());
}

std::string actions_text(const PipelineSchedule& schedule) {
  std::string text = joined(schedule.stage_of);
  for (const auto& actions : schedule.actions) {
    text += ";";
    for (const PipelineAction& action : actions)
      text += letter_of(action.work) + std::to_string(action.chunk) + "." +
              std::to_string(action.micro_batch) + " ";
  }
  return text;
}

std::string ties_text(const std::vector<PipelineTie>& ties) {
  std::string text = std::to_string(ties.size()) + " tied parameters";
  for (const PipelineTie& tie : ties)
    text += (&tie == ties.data() ? ": chunks " : ", chunks ") + std::to_string(tie.first) +
            " and " + std::to_string(tie.last);
  return text;
}

// Formats "float32 [50, 16], frozen"; "" for a stage that has neither chunk.
std::string tied_text(const at::Tensor& parameter) {
  if (!parameter.defined()) return "";
  return std::string(dtype_name(parameter.scalar_type())) + " [" + joined(parameter.sizes().vec()) +
         "]" + (parameter.requires_grad() ? "" : ", frozen");
}

// The text about two stages where `key` differs, with the remedy.
struct Question {
  const char* key;    // is compared
  const char* shown;  // appears in the message
  const char* verb;
  const char* advice;
};
constexpr Question kQuestions[] = {
    {"plan", "plan", "runs", "every rank must make the same schedule"},
    {"actions", "plan", "has other actions in its", "every rank must make the same schedule"},
    {"discipline", "discipline", "allows", "every rank must give the same PipelineDiscipline"},
    {"ties", "ties", "has", "every rank must give the same list"}};

void compare(const std::vector<nlohmann::json>& all) {
  for (const Question& question : kQuestions) {
    for (size_t stage = 1; stage < all.size(); ++stage) {
      if (all[stage][question.key] == all[0][question.key]) continue;
      throw Mismatch("pipeline: stage " + std::to_string(stage) + " " + question.verb + " " +
                     all[stage][question.shown].get<std::string>() + ", stage 0 " + question.verb +
                     " " + all[0][question.shown].get<std::string>() + "; " + question.advice);
    }
  }
}

// For the stages that have a tie's parameter.
void compare_tied(const std::vector<nlohmann::json>& all, const std::vector<PipelineTie>& ties) {
  for (size_t i = 0; i < ties.size(); ++i) {
    const auto of = [&](size_t stage) { return all[stage]["tied"][i].get<std::string>(); };
    std::optional<size_t> first;
    for (size_t stage = 0; stage < all.size(); ++stage) {
      if (of(stage).empty()) continue;
      if (!first) first = stage;
      if (of(stage) == of(*first)) continue;
      throw Mismatch("pipeline: of the tie of chunks " + std::to_string(ties[i].first) + " and " +
                     std::to_string(ties[i].last) + " stage " + std::to_string(stage) + " has " +
                     of(stage) + ", stage " + std::to_string(*first) + " " + of(*first) +
                     "; they must be alike");
    }
  }
}

// Compares the chunks' origins. Chunks without one fit all others.
void compare_origins(const std::vector<nlohmann::json>& all) {
  std::optional<size_t> first;
  for (size_t stage = 0; stage < all.size(); ++stage) {
    for (const auto& told : all[stage]["origins"]) {
      const auto own = told.get<std::string>();
      if (own.empty()) continue;
      if (!first) first = stage;
      const auto others = all[*first]["origins"][0].get<std::string>();
      if (own != others)
        throw Mismatch("pipeline: stage " + std::to_string(stage) + " has chunks of " + own +
                       ", stage " + std::to_string(*first) + " of " + others +
                       "; every rank must cut the same model alike");
    }
  }
}

void compare_boundaries(const PipelineSchedule& schedule, const std::vector<nlohmann::json>& all) {
  std::map<int, std::pair<std::string, std::string>> rows;  // of each chunk: received, sent
  for (int stage = 0; stage < schedule.stages; ++stage) {
    const std::vector<int> own = schedule.chunks_of(stage);
    const auto& told = all[static_cast<size_t>(stage)]["rows"];
    for (size_t i = 0; i < own.size(); ++i)
      rows[own[i]] = {told[i][0].get<std::string>(), told[i][1].get<std::string>()};
  }
  for (int chunk = 0; chunk + 1 < schedule.all_chunks(); ++chunk) {
    const std::string &given = rows[chunk].second, &taken = rows[chunk + 1].first;
    if (given == taken) continue;
    const auto named = [&](int which) {
      return "chunk " + std::to_string(which) + " on stage " +
             std::to_string(schedule.stage_of[static_cast<size_t>(which)]);
    };
    throw Mismatch("pipeline: " + named(chunk) + " gives " + given + ", " + named(chunk + 1) +
                   " takes " + taken + "; neighbours must declare the same rows");
  }
}

}  // namespace

void agree_on_pipeline(Communicator& comm, const PipelineSchedule& schedule,
                       const PipelineDiscipline& discipline,
                       const std::vector<PipelineChunk>& chunks,
                       const std::vector<PipelineTie>& ties) {
  nlohmann::json mine{
      {"plan", schedule.name + " with " + std::to_string(schedule.micro_batches) +
                   " micro-batches and " + std::to_string(schedule.chunks) + " chunks a stage"},
      {"discipline",
       std::to_string(discipline.receives_ahead) + " receives ahead and " +
           (discipline.most_sends == 0 ? "any number of" : std::to_string(discipline.most_sends)) +
           " sends"},
      {"actions", fingerprint(actions_text(schedule))},
      {"ties", ties_text(ties)},
      {"tied", nlohmann::json::array()},
      {"rows", nlohmann::json::array()},
      {"origins", nlohmann::json::array()}};
  for (const PipelineTie& tie : ties) mine["tied"].push_back(tied_text(tie.parameter));
  for (const PipelineChunk& chunk : chunks) {
    mine["rows"].push_back({to_string(chunk.takes), to_string(chunk.gives)});
    mine["origins"].push_back(chunk.origin);
  }
  std::vector<nlohmann::json> all;
  at_place([&] { return stage_text(comm) + " compares its schedule with the other stages"; },
           [&] { all = all_gather_object(comm, mine); });
  compare(all);
  compare_tied(all, ties);
  compare_boundaries(schedule, all);
  compare_origins(all);
}

void agree_on_step(Communicator& comm, const PipelineSchedule& schedule, bool backward,
                   const std::vector<int64_t>& rows) {
  const int64_t width = 2 + schedule.micro_batches;
  const at::Tensor mine = at::full({1, width}, -1, at::kLong);
  auto* const own = mine.mutable_data_ptr<int64_t>();
  own[0] = backward ? 1 : 0;
  own[1] = static_cast<int64_t>(rows.size());
  std::copy(rows.begin(), rows.end(), own + 2);
  at::Tensor all;
  at_place([&] { return stage_text(comm) + ", before its first action"; },
           [&] { all = comm.all_gather(mine); });
  const auto* const first = all.const_data_ptr<int64_t>();
  for (int stage = 1; stage < comm.size(); ++stage) {
    const int64_t* const other = first + stage * width;
    for (int64_t i = 0; i < width; ++i) {
      if (other[i] == first[i]) continue;
      const auto said = [&](int which, const int64_t* of) {
        const std::string number = std::to_string(of[i]);
        return "stage " + std::to_string(which) +
               (i == 0   ? std::string(of[0] == 1 ? " called step" : " called evaluate")
                : i == 1 ? " has " + number + " micro-batches"
                         : " has " + number + " rows in micro-batch " + std::to_string(i - 2));
      };
      throw Mismatch("pipeline: " + said(stage, other) + ", " + said(0, first) +
                     "; every rank must call the same with the same rows");
    }
  }
}

}  // namespace internal

std::string to_string(const PipelineRows& rows) {
  return std::string(dtype_name(rows.dtype)) + " [rows" +
         (rows.parts == 1 ? "" : " / " + std::to_string(rows.parts)) +
         (rows.shape.empty() ? "" : ", " + joined(rows.shape)) + "]";
}

std::vector<int64_t> sizes_of(const PipelineRows& rows, int64_t of_micro_batch) {
  if (rows.parts < 1 || of_micro_batch % rows.parts != 0)
    throw InvalidArgument("pipeline: a micro-batch of " + std::to_string(of_micro_batch) +
                          " rows does not divide among " + std::to_string(rows.parts) +
                          " parts, as a chunk declares");
  std::vector<int64_t> sizes{of_micro_batch / rows.parts};
  sizes.insert(sizes.end(), rows.shape.begin(), rows.shape.end());
  return sizes;
}

}  // namespace lockstep::inline v0
