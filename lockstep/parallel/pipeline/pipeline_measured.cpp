// The times of a step, from all stages together.
#include <nlohmann/json.hpp>
#include <utility>

#include "lockstep/comm/objects.h"
#include "lockstep/parallel/pipeline/internal/measured.h"
#include "lockstep/parallel/pipeline/internal/place.h"

namespace lockstep::inline v0::internal {

std::optional<MeasuredPipeline> gather_measured(Communicator& comm,
                                                const PipelineSchedule& schedule,
                                                const std::vector<TimedAction>& executed,
                                                int most_held) {
  nlohmann::json mine{{"held", most_held}, {"actions", nlohmann::json::array()}};
  for (const TimedAction& timed : executed)
    mine["actions"].push_back({static_cast<int>(timed.action.work), timed.action.chunk,
                               timed.action.micro_batch, timed.start, timed.end});
  std::vector<nlohmann::json> all;
  at_place(
      [&] {
        return "pipeline stage " + std::to_string(comm.rank()) + " gathers the stages' times";
      },
      [&] { all = gather_object(comm, mine, 0); });
  if (comm.rank() != 0) return std::nullopt;
  std::vector<std::vector<TimedAction>> actions;
  std::vector<int> held;
  for (const nlohmann::json& told : all) {
    held.push_back(told["held"].get<int>());
    auto& of_stage = actions.emplace_back();
    for (const auto& one : told["actions"])
      of_stage.push_back(
          {{static_cast<PipelineWork>(one[0].get<int>()), one[1].get<int>(), one[2].get<int>()},
           one[3].get<double>(),
           one[4].get<double>()});
  }
  return measured_pipeline(schedule, std::move(actions), std::move(held));
}

}  // namespace lockstep::inline v0::internal
