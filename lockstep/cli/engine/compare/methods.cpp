#include "lockstep/cli/engine/compare/methods.h"

#include <algorithm>
#include <set>
#include <sstream>

#include "lockstep/core/errors.h"
#include "lockstep/core/text.h"

namespace lockstep::engine {

const std::vector<TrainingMethod>& training_methods() {
  // name, tutorial's name, on_ranks, takes_nproc, takes_amp
  static const std::vector<TrainingMethod> kMethods{
      {"single", "single-gpu-cls", false, false, false},
      {"data_parallel", "multi-gpu-dataparrel-cls", false, true, false},
      {"distributed", "multi-gpu-distributed-cls", true, false, false},
      {"distributed_spawn", "multi-gpu-distributed-mp-cls", false, true, false},
      {"distributed_amp", "multi-gpu-distributed-mp-amp-cls", true, false, true},
      {"horovod", "multi-gpu-horovod-cls", true, false, false},
      {"zero_engine", "multi-gpu-deepspeed-cls", true, false, true},
      {"accelerator", "multi-gpu-accelerate-cls", true, false, true},
      {"trainer", "multi-gpu-transformers-cls", true, false, true}};
  return kMethods;
}

std::vector<TrainingMethod> parse_methods(const std::string& text) {
  const std::vector<TrainingMethod>& all = training_methods();
  if (text == "all") return all;
  std::vector<std::string> names;
  for (const TrainingMethod& method : all) names.emplace_back(method.name);
  std::set<std::string> wanted;
  std::istringstream list(text);
  for (std::string name; std::getline(list, name, ',');) {
    if (std::find(names.begin(), names.end(), name) == names.end()) {
      const std::string near = nearest_name(name, names);
      throw InvalidArgument("there is no method '" + name + "'" +
                            (near.empty() ? "" : "; did you mean '" + near + "'?") +
                            "; choose all, or from " + joined(names));
    }
    wanted.insert(name);
  }
  if (wanted.empty())
    throw InvalidArgument("--methods is empty; choose all, or from " + joined(names));
  std::vector<TrainingMethod> chosen;
  std::copy_if(all.begin(), all.end(), std::back_inserter(chosen),
               [&](const TrainingMethod& method) { return wanted.contains(method.name); });
  return chosen;
}

}  // namespace lockstep::engine
