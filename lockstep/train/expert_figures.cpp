#include "lockstep/train/expert_figures.h"

#include <algorithm>
#include <cstdint>
#include <string>

namespace lockstep::inline v0 {

Metrics expert_figures(const TransformerLm& model) {
  return router_figures(model->routers());
}

Metrics router_figures(const std::vector<RouterStatistics>& layers) {
  Metrics figures;
  for (const RouterStatistics& layer : layers) {
    const std::string name = "experts/" + std::to_string(layer.layer) + "/";
    int64_t all = 0;
    for (const int64_t count : layer.choices) all += count;
    const auto share = [all](int64_t count) {
      return static_cast<double>(count) / static_cast<double>(std::max<int64_t>(all, 1));
    };
    figures.emplace_back(name + "choices", static_cast<double>(all));
    for (size_t e = 0; e < layer.choices.size(); ++e)
      figures.emplace_back(name + "share/" + std::to_string(e), share(layer.choices[e]));
    figures.emplace_back(name + "left_out", share(layer.left_out));
    figures.emplace_back(name + "entropy", layer.entropy);
    figures.emplace_back(name + "balance", layer.balance);
  }
  return figures;
}

}  // namespace lockstep::inline v0
