// The reports of the confusion matrices on stdin, for classification_report.py. A JSON array of
// {labels, counts, digits, zero_division ("nan" or a number)} in, one of {text, report} out.
#include "lockstep/report/classification_report.h"

#include <iostream>
#include <limits>
#include <nlohmann/json.hpp>

int main() {
  nlohmann::ordered_json answers = nlohmann::ordered_json::array();
  for (const auto& question : nlohmann::json::parse(std::cin)) {
    const lockstep::ConfusionMatrix matrix(question.at("labels"), question.at("counts"));
    const auto& value = question.at("zero_division");
    const auto report = lockstep::classification_report(
        matrix, value.is_string() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>());
    answers.push_back({{"text", lockstep::to_text(report, question.at("digits"))},
                       {"report", lockstep::to_json(report)}});
  }
  std::cout << answers.dump() << std::endl;
}
