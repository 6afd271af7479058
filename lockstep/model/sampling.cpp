#include "lockstep/model/sampling.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/tensor.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "lockstep/core/errors.h"
#include "lockstep/kernels/random_word.h"
#include "lockstep/model/lm_cache.h"

namespace lockstep::inline v0 {
namespace {

// In [0, 1), number `index` of the seed.
double uniform(uint64_t seed, uint64_t index) {
  const uint64_t key = kernels::row_key(seed, static_cast<int64_t>(index));
  const uint64_t high = kernels::random_word(key, 0), low = kernels::random_word(key, 1);
  return static_cast<double>((high << 21) ^ (low >> 11)) * 0x1p-53;
}

}  // namespace

void check(const SamplingOptions& options) {
  if (!(options.temperature >= 0) || !std::isfinite(options.temperature))
    throw InvalidArgument("temperature is " + std::to_string(options.temperature) +
                          "; give 0, or more");
  if (options.top_k < 0)
    throw InvalidArgument("top_k is " + std::to_string(options.top_k) +
                          "; give 0, for all, or more");
  if (!(options.top_p > 0 && options.top_p <= 1))
    throw InvalidArgument("top_p is " + std::to_string(options.top_p) +
                          "; give more than 0, and at most 1");
}

TokenSampler::TokenSampler(const SamplingOptions& options) : options_(options) {
  check(options);
}

at::Tensor TokenSampler::draw(const at::Tensor& logits) {
  if (!logits.defined() || logits.dim() != 2 || logits.numel() == 0)
    throw InvalidArgument("TokenSampler: logits must be [B, vocabulary]");
  const at::Tensor all = logits.detach().to(at::kCPU, at::kDouble).contiguous();
  const at::Tensor tokens = at::empty({all.size(0)}, at::kLong);
  const int64_t vocabulary = all.size(1);
  std::vector<std::pair<double, int64_t>> likeliest;
  for (int64_t row = 0; row < all.size(0); ++row) {
    const double* const from = all.const_data_ptr<double>() + row * vocabulary;
    likeliest.clear();
    for (int64_t id = 0; id < vocabulary; ++id) {
      if (std::isnan(from[id]) || from[id] == HUGE_VAL)
        throw InvalidArgument("TokenSampler: the logits of row " + std::to_string(row) +
                              " are no numbers; the model's parameters may be damaged");
      likeliest.emplace_back(from[id], id);
    }
    tokens.mutable_data_ptr<int64_t>()[row] = draw_one(likeliest);
  }
  return tokens;
}

int64_t TokenSampler::draw_one(std::vector<std::pair<double, int64_t>>& likeliest) {
  // Of equal ones the first, so that nothing depends on a sort's inside.
  const auto before = [](const auto& a, const auto& b) {
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  };
  if (options_.temperature == 0)
    return std::min_element(likeliest.begin(), likeliest.end(), before)->second;
  const size_t most = options_.top_k == 0
                          ? likeliest.size()
                          : std::min(likeliest.size(), static_cast<size_t>(options_.top_k));
  std::partial_sort(likeliest.begin(), likeliest.begin() + static_cast<ptrdiff_t>(most),
                    likeliest.end(), before);
  likeliest.resize(most);
  const double first = likeliest.front().first;
  double total = 0;
  for (auto& [weight, id] : likeliest) {
    weight = std::exp((weight - first) / options_.temperature);
    total += weight;
  }
  double reached = 0;
  size_t kept = 0;
  while (kept < likeliest.size() && (kept == 0 || reached < options_.top_p * total))
    reached += likeliest[kept++].first;
  double left = uniform(options_.seed, drawn_++) * reached;
  for (size_t i = 0; i + 1 < kept; ++i) {
    left -= likeliest[i].first;
    if (left < 0) return likeliest[i].second;
  }
  return likeliest[kept - 1].second;
}

namespace {

// What follows `prompt`, at most as far as the positions go. False: the text has ended.
bool extend(TransformerLm& model, const std::vector<int64_t>& prompt, int64_t most,
            const GenerateOptions& options, TokenSampler& sampler, std::vector<int64_t>* tokens) {
  const at::Tensor weight = model->parameters().front();
  LmCache cache(model->config(), 1, static_cast<int64_t>(prompt.size()) + most, weight.options());
  at::Tensor news = at::tensor(prompt, at::kLong).unsqueeze(0).to(weight.device());
  for (int64_t i = 0; i < most; ++i) {
    const at::Tensor token = sampler.draw(model->next(news, cache));
    tokens->push_back(token.item<int64_t>());
    const bool stops = std::find(options.stop_ids.begin(), options.stop_ids.end(),
                                 tokens->back()) != options.stop_ids.end();
    if ((options.on_token && !options.on_token(tokens->back())) || stops) return false;
    news = token.unsqueeze(0).to(weight.device());
  }
  return true;
}

}  // namespace

std::vector<int64_t> generate(TransformerLm& model, const std::vector<int64_t>& prompt,
                              const GenerateOptions& options) {
  TokenSampler sampler(options.sampling);
  const auto given = static_cast<int64_t>(prompt.size());
  const int64_t positions = model->config().max_position_embeddings;
  if (prompt.empty()) throw InvalidArgument("generate: the prompt is empty");
  if (given >= positions && !options.beyond_positions)
    throw InvalidArgument("generate: the prompt has " + std::to_string(given) +
                          " tokens, and the model positions for " + std::to_string(positions));
  if (options.max_new_tokens < 1)
    throw InvalidArgument("generate: max_new_tokens is " + std::to_string(options.max_new_tokens) +
                          "; give 1 or more");
  const bool training = model->is_training();
  model->eval();
  std::vector<int64_t> seen = prompt, tokens;
  const int64_t kept = std::max<int64_t>(positions / 2, 1);
  try {
    for (bool more = true; more;) {
      if (static_cast<int64_t>(seen.size()) >= positions)
        seen.erase(seen.begin(), seen.end() - kept);
      const auto left = options.max_new_tokens - static_cast<int64_t>(tokens.size());
      // A model of one position sees the token before alone.
      const auto room = std::max<int64_t>(positions - static_cast<int64_t>(seen.size()), 1);
      const size_t before = tokens.size();
      more = extend(model, seen, std::min(left, room), options, sampler, &tokens) &&
             options.beyond_positions &&
             static_cast<int64_t>(tokens.size()) < options.max_new_tokens;
      seen.insert(seen.end(), tokens.begin() + static_cast<int64_t>(before), tokens.end());
    }
  } catch (...) {
    model->train(training);
    throw;
  }
  model->train(training);
  return tokens;
}

}  // namespace lockstep::inline v0
