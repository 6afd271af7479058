#include "lockstep/report/run_report.h"

#include <cctype>
#include <fstream>
#include <nlohmann/json.hpp>

#include "lockstep/report/line_chart.h"

namespace lockstep::inline v0 {
namespace {

struct Curves {
  Series training, evaluations, scores;
  bool perplexity = false;  // the scores are perplexities; otherwise accuracies in per cent
};

Curves curves_of(const std::filesystem::path& metrics) {
  Curves curves;
  curves.evaluations.dashed = true;
  std::error_code ignored;
  std::ifstream file;
  if (std::filesystem::is_regular_file(metrics, ignored)) file.open(metrics);
  for (std::string line; std::getline(file, line);) {
    const auto json = nlohmann::json::parse(line, nullptr, /*allow_exceptions=*/false);
    const auto has = [&json](const char* key) {
      return json.contains(key) && json[key].is_number();
    };
    if (!json.is_object() || !has("step") || !has("loss")) continue;
    const bool evaluated = has("accuracy");
    const auto step = json["step"].get<double>();
    Series& loss = evaluated ? curves.evaluations : curves.training;
    loss.x.push_back(step);
    loss.y.push_back(json["loss"].get<double>());
    if (!evaluated) continue;
    curves.perplexity = has("perplexity");
    curves.scores.x.push_back(step);
    curves.scores.y.push_back(curves.perplexity ? json["perplexity"].get<double>()
                                                : 100 * json["accuracy"].get<double>());
  }
  return curves;
}

std::string drawn(Curves curves, const std::string& title, const std::string& held_out,
                  bool chinese) {
  const auto word = [chinese](const std::string& en, const std::string& zh) {
    return chinese ? zh : en;
  };
  std::string of = held_out;
  of.front() = static_cast<char>(std::toupper(static_cast<unsigned char>(of.front())));
  const std::string of_zh = held_out_words(held_out).zh;
  curves.training.name = word("training", "训练");
  curves.evaluations.name = word(held_out, of_zh);
  ChartPanel losses{.title = word("Loss", "损失"),
                    .x_label = word("step", "步"),
                    .y_label = word("loss", "损失"),
                    .series = {curves.training, curves.evaluations},
                    .x_integers = true};
  ChartPanel scores{.title = word(of + " accuracy", of_zh + "准确率"),
                    .x_label = word("step", "步"),
                    .y_label = "%",
                    .series = {curves.scores},
                    .y_from_zero = false,
                    .x_integers = true,
                    .y_most = 100};
  if (curves.perplexity) {
    scores.title = word(of + " perplexity", of_zh + "困惑度");
    scores.y_label = word("perplexity", "困惑度");
    scores.y_most.reset();
  }
  return svg_line_chart({losses, scores}, {.title = title, .same_x = true});
}

}  // namespace

Words run_report_svg(const std::filesystem::path& metrics, const RunReport& report) {
  const Curves curves = curves_of(metrics);
  return {drawn(curves, report.title.en, report.held_out, false),
          drawn(curves, report.title.zh, report.held_out, true)};
}

Words held_out_words(const std::string& held_out) {
  return {held_out, held_out == "test" ? "测试集" : "验证集"};
}

std::filesystem::path in_chinese(const std::filesystem::path& picture) {
  return picture.parent_path() / (picture.stem().string() + "_zh" + picture.extension().string());
}

}  // namespace lockstep::inline v0
