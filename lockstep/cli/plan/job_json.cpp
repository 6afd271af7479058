#include <nlohmann/json.hpp>

#include "lockstep/cli/plan/job_report.h"

namespace lockstep::inline v0::cli {
namespace {

using nlohmann::ordered_json;

template <typename Parts>
ordered_json json_of_parts(const Parts& parts) {
  ordered_json object = ordered_json::object();
  for (const auto& [name, value] : parts.parts()) object[name] = value;
  object["total"] = parts.total();
  return object;
}

ordered_json layout_json(const plan::Layout& layout) {
  return {{"mesh", mesh_text(layout)},
          {"data", layout.data},
          {"pipe", layout.pipe},
          {"context", layout.context},
          {"expert", layout.expert},
          {"tensor", layout.tensor},
          {"zero", layout.zero},
          {"shard_ranks", layout.shard_ranks},
          {"micro_batch", layout.micro_batch},
          {"micro_batches", layout.micro_batches()},
          {"schedule", layout.schedule},
          {"chunks", layout.chunks},
          {"activations", name_of(layout.activations)},
          {"divided_rows", layout.divides_rows}};
}

ordered_json estimate_json(const plan::Estimate& estimate) {
  ordered_json stages = ordered_json::array();
  for (const plan::MemoryParts& stage : estimate.memory.stages) stages.push_back(stage.total());
  return {{"fits", estimate.fits()},
          {"spare_bytes", estimate.spare_bytes},
          {"memory_bytes", json_of_parts(estimate.memory.of_worst())},
          {"fullest_stage", estimate.memory.worst},
          {"stage_bytes", stages},
          {"step_s", estimate.step},
          {"time_s", json_of_parts(estimate.time)},
          {"tokens_per_s_per_rank", estimate.tokens_per_second},
          {"bubble", estimate.bubble},
          {"exposed", estimate.exposed}};
}

ordered_json candidate_json(const JobPlan& job, const plan::Candidate& candidate) {
  ordered_json object = layout_json(candidate.layout);
  object.update(estimate_json(candidate.estimate));
  object["tokens_per_s"] =
      candidate.estimate.tokens_per_second * static_cast<double>(candidate.layout.ranks());
  object["tflops_per_rank"] =
      plan::flops_per_second(candidate.estimate, job.model, candidate.layout, job.convention) /
      1e12;
  object["mfu"] = plan::utilization(candidate.estimate, job.model, candidate.layout, job.machine,
                                    job.convention);
  if (!candidate.loses.empty()) object["loses"] = candidate.loses;
  return object;
}

ordered_json candidates_json(const JobPlan& job, const std::vector<plan::Candidate>& candidates) {
  ordered_json list = ordered_json::array();
  for (const plan::Candidate& one : candidates) list.push_back(candidate_json(job, one));
  return list;
}

ordered_json what_if_json(const JobPlan& job) {
  ordered_json object = ordered_json::object();
  ordered_json variations = ordered_json::array();
  for (const Variation& one : job.variations) {
    ordered_json variation{{"what", one.what},
                           {"step_s", one.estimate.step},
                           {"tokens_per_s_per_rank", one.estimate.tokens_per_second}};
    if (one.fastest) variation["fastest"] = candidate_json(job, *one.fastest);
    variations.push_back(std::move(variation));
  }
  if (!variations.empty()) object["variations"] = variations;
  if (job.goodput)
    object["goodput"] = {{"share", job.goodput->share}, {"checkpoints", job.goodput->checkpoints},
                         {"lost", job.goodput->lost},   {"restarts", job.goodput->restarts},
                         {"mtbf_s", job.goodput->mtbf}, {"interval_s", job.goodput->interval}};
  if (job.cost)
    object["cost"] = {{"tokens", job.tokens},
                      {"seconds", job.cost->seconds},
                      {"rank_hours", job.cost->rank_hours},
                      {"price", job.cost->price}};
  return object;
}

}  // namespace

ordered_json job_json(const JobPlan& job) {
  const plan::Layout& shared = job.request.job;
  ordered_json object{{"model", job.model.name},
                      {"parameters", parameter_count(job.model)},
                      {"machine", job.machine.name},
                      {"stack", job.stack.name},
                      {"flops_convention", job.convention.name},
                      {"ranks", job.request.ranks},
                      {"global_batch", shared.global_batch},
                      {"sequence", shared.sequence},
                      {"precision", name_of(shared.precision)},
                      {"optimizer", name_of(shared.optimizer)}};
  if (job.one) {
    object["layout"] = candidate_json(job, *job.one);
  } else {
    object["layouts"] = job.found.layouts;
    object["search_s"] = job.seconds;
    object["best"] = candidates_json(job, job.found.best);
    object["too_large"] = candidates_json(job, job.found.too_large);
  }
  if (ordered_json what = what_if_json(job); !what.empty()) object["what_if"] = std::move(what);
  return object;
}

}  // namespace lockstep::inline v0::cli
