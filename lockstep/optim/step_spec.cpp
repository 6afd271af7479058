#include "lockstep/optim/step_spec.h"

#include <cmath>

#include "lockstep/core/errors.h"

namespace lockstep::inline v0::optim {
namespace {

Schedule schedule_of(const std::string& name, const ScheduleOptions& options) {
  if (name == "constant") return constant(options);
  if (name == "linear") return linear(options);
  if (name == "cosine") return cosine(options);
  throw InvalidArgument("schedule is '" + name + "'; give constant, linear or cosine");
}

}  // namespace

std::function<double(int64_t)> rates_of(const StepSpec& spec, int64_t total_steps,
                                        int64_t steps_per_epoch) {
  const double base = spec.optimizer.lr;
  const ScheduleSpec& given = spec.schedule;
  if (given.deepspeed)
    return
        [course = *given.deepspeed, base](int64_t step) { return warmup_rate(course, base, step); };
  Warmup warmup{.steps = given.warmup_steps, .ratio = given.warmup_ratio};
  if (warmup.steps == 0)
    warmup.steps = std::llround(given.warmup_epochs * static_cast<double>(steps_per_epoch));
  const Schedule schedule = schedule_of(given.name, {.total_steps = total_steps, .warmup = warmup});
  return [schedule, base](int64_t step) { return base * schedule.factor(step); };
}

}  // namespace lockstep::inline v0::optim
