#include "lockstep/export/layer_text.h"

#include <torch/enum.h>
#include <torch/nn/modules/activation.h>
#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/nn/modules/dropout.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/instancenorm.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/normalization.h>
#include <torch/nn/modules/pooling.h>

#include <charconv>
#include <cmath>
#include <cstdint>
#include <map>
#include <typeindex>
#include <variant>
#include <vector>

namespace lockstep::inline v0::internal {
namespace {

namespace nn = torch::nn;

std::string text_of(bool value) {
  return value ? "True" : "False";
}
std::string text_of(int64_t value) {
  return std::to_string(value);
}
// The shortest text that is read as the same number.
std::string text_of(double value) {
  if (!std::isfinite(value))
    return std::string("float(\"") +
           (std::isnan(value) ? "nan"
            : value > 0       ? "inf"
                              : "-inf") +
           "\")";
  char buffer[32];
  const auto end = std::to_chars(buffer, buffer + sizeof buffer, value).ptr;
  std::string text(buffer, end);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}
std::string text_of(const std::string& value) {
  return python_string(value);
}
template <typename T>
std::string text_of(const std::optional<T>& value) {
  return value ? text_of(static_cast<T>(*value)) : "None";
}

template <typename Items>
std::string tuple_of(const Items& items) {
  std::string text = "(";
  for (const auto& item : items) text += text_of(item) + ", ";
  text.pop_back();
  if (items.size() > 1) text.pop_back();
  return text + ")";
}
std::string text_of(const std::vector<int64_t>& value) {
  return tuple_of(value);
}
template <size_t D>
std::string text_of(const torch::ExpandingArray<D>& value) {
  return tuple_of(*value);
}
template <size_t D>
std::string text_of(const torch::ExpandingArrayWithOptionalElem<D>& value) {
  return tuple_of(*value);
}

// kSame, kReflect: "same", "reflect".
template <typename Variant>
std::string word_of(const Variant& value) {
  std::string word = torch::enumtype::get_enum_name(value).substr(1);
  word[0] = static_cast<char>(word[0] - 'A' + 'a');
  return python_string(word);
}
template <size_t D>
std::string padding_of(const nn::detail::conv_padding_t<D>& padding) {
  if (const auto* sizes = std::get_if<torch::ExpandingArray<D>>(&padding)) return text_of(*sizes);
  return std::holds_alternative<torch::enumtype::kSame>(padding) ? "\"same\"" : "\"valid\"";
}

// "nn.NAME(a=1, b=2)".
class Call {
 public:
  explicit Call(const char* name) : text_(std::string("nn.") + name + "(") {}
  template <typename T>
  Call& with(const char* name, const T& value) {
    return with_text(name, text_of(value));
  }
  Call& with_text(const char* name, const std::string& value) {
    text_ += (text_.ends_with('(') ? "" : ", ") + std::string(name) + "=" + value;
    return *this;
  }
  std::string end() const { return text_ + ")"; }

 private:
  std::string text_;
};

using Writer = std::string (*)(const nn::Module&);
using Table = std::map<std::type_index, Writer>;

template <typename Impl>
const Impl& as(const nn::Module& module) {
  return dynamic_cast<const Impl&>(module);
}

template <typename Impl, size_t D>
std::string convolution(const nn::Module& module, const char* name) {
  const auto& o = as<Impl>(module).options;
  return Call(name)
      .with("in_channels", o.in_channels())
      .with("out_channels", o.out_channels())
      .with("kernel_size", o.kernel_size())
      .with("stride", o.stride())
      .with_text("padding", padding_of<D>(o.padding()))
      .with("dilation", o.dilation())
      .with("groups", o.groups())
      .with("bias", o.bias())
      .with_text("padding_mode", word_of(o.padding_mode()))
      .end();
}

// Their modules have the options of convolutions.
template <typename Impl, size_t D>
std::string transposed_convolution(const nn::Module& module, const char* name) {
  const auto& o = as<Impl>(module).options;
  return Call(name)
      .with("in_channels", o.in_channels())
      .with("out_channels", o.out_channels())
      .with("kernel_size", o.kernel_size())
      .with("stride", o.stride())
      .with_text("padding", padding_of<D>(o.padding()))
      .with("output_padding", o.output_padding())
      .with("groups", o.groups())
      .with("bias", o.bias())
      .with("dilation", o.dilation())
      .end();
}

template <typename Impl>
std::string norm(const nn::Module& module, const char* name) {
  const auto& o = as<Impl>(module).options;
  return Call(name)
      .with("num_features", o.num_features())
      .with("eps", o.eps())
      .with("momentum", o.momentum())
      .with("affine", o.affine())
      .with("track_running_stats", o.track_running_stats())
      .end();
}

template <typename Impl>
std::string max_pool(const nn::Module& module, const char* name) {
  const auto& o = as<Impl>(module).options;
  return Call(name)
      .with("kernel_size", o.kernel_size())
      .with("stride", o.stride())
      .with("padding", o.padding())
      .with("dilation", o.dilation())
      .with("ceil_mode", o.ceil_mode())
      .end();
}

template <typename Impl>
std::string average_pool(const nn::Module& module, const char* name) {
  const auto& o = as<Impl>(module).options;
  Call call(name);
  call.with("kernel_size", o.kernel_size())
      .with("stride", o.stride())
      .with("padding", o.padding())
      .with("ceil_mode", o.ceil_mode())
      .with("count_include_pad", o.count_include_pad());
  if (o.divisor_override()) call.with("divisor_override", *o.divisor_override());
  return call.end();
}

template <typename Impl>
std::string adaptive_pool(const nn::Module& module, const char* name) {
  return Call(name).with("output_size", as<Impl>(module).options.output_size()).end();
}

template <typename Impl>
std::string dropout(const nn::Module& module, const char* name) {
  return Call(name).with("p", as<Impl>(module).options.p()).end();
}

template <typename Impl>
std::string over_dim(const nn::Module& module, const char* name) {
  return Call(name).with("dim", as<Impl>(module).options.dim()).end();
}

#define LOCKSTEP_LAYER(name, call) \
  {typeid(nn::name##Impl), [](const nn::Module& m) -> std::string { return call; }}
#define LOCKSTEP_OF(name, writer) LOCKSTEP_LAYER(name, (writer<nn::name##Impl>(m, #name)))
#define LOCKSTEP_PLAIN(name) LOCKSTEP_LAYER(name, ((void)m, Call(#name).end()))
#define LOCKSTEP_OPTION(name, word, option) \
  LOCKSTEP_LAYER(name, Call(#name).with(word, as<nn::name##Impl>(m).options.option()).end())

void add_weighted(Table& table) {
  table.insert({
      LOCKSTEP_LAYER(Linear, Call("Linear")
                                 .with("in_features", as<nn::LinearImpl>(m).options.in_features())
                                 .with("out_features", as<nn::LinearImpl>(m).options.out_features())
                                 .with("bias", as<nn::LinearImpl>(m).options.bias())
                                 .end()),
      LOCKSTEP_LAYER(Conv1d, (convolution<nn::Conv1dImpl, 1>(m, "Conv1d"))),
      LOCKSTEP_LAYER(Conv2d, (convolution<nn::Conv2dImpl, 2>(m, "Conv2d"))),
      LOCKSTEP_LAYER(Conv3d, (convolution<nn::Conv3dImpl, 3>(m, "Conv3d"))),
      LOCKSTEP_LAYER(ConvTranspose1d,
                     (transposed_convolution<nn::ConvTranspose1dImpl, 1>(m, "ConvTranspose1d"))),
      LOCKSTEP_LAYER(ConvTranspose2d,
                     (transposed_convolution<nn::ConvTranspose2dImpl, 2>(m, "ConvTranspose2d"))),
      LOCKSTEP_LAYER(ConvTranspose3d,
                     (transposed_convolution<nn::ConvTranspose3dImpl, 3>(m, "ConvTranspose3d"))),
      LOCKSTEP_OF(BatchNorm1d, norm),
      LOCKSTEP_OF(BatchNorm2d, norm),
      LOCKSTEP_OF(BatchNorm3d, norm),
      LOCKSTEP_OF(InstanceNorm1d, norm),
      LOCKSTEP_OF(InstanceNorm2d, norm),
      LOCKSTEP_OF(InstanceNorm3d, norm),
      LOCKSTEP_LAYER(
          LayerNorm,
          Call("LayerNorm")
              .with("normalized_shape", as<nn::LayerNormImpl>(m).options.normalized_shape())
              .with("eps", as<nn::LayerNormImpl>(m).options.eps())
              .with("elementwise_affine", as<nn::LayerNormImpl>(m).options.elementwise_affine())
              .end()),
      LOCKSTEP_LAYER(GroupNorm,
                     Call("GroupNorm")
                         .with("num_groups", as<nn::GroupNormImpl>(m).options.num_groups())
                         .with("num_channels", as<nn::GroupNormImpl>(m).options.num_channels())
                         .with("eps", as<nn::GroupNormImpl>(m).options.eps())
                         .with("affine", as<nn::GroupNormImpl>(m).options.affine())
                         .end()),
      LOCKSTEP_LAYER(Embedding,
                     Call("Embedding")
                         .with("num_embeddings", as<nn::EmbeddingImpl>(m).options.num_embeddings())
                         .with("embedding_dim", as<nn::EmbeddingImpl>(m).options.embedding_dim())
                         .with("padding_idx", as<nn::EmbeddingImpl>(m).options.padding_idx())
                         .with("max_norm", as<nn::EmbeddingImpl>(m).options.max_norm())
                         .with("norm_type", as<nn::EmbeddingImpl>(m).options.norm_type())
                         .end()),
      LOCKSTEP_OPTION(PReLU, "num_parameters", num_parameters),
  });
}

void add_pooling(Table& table) {
  table.insert({
      LOCKSTEP_OF(MaxPool1d, max_pool),
      LOCKSTEP_OF(MaxPool2d, max_pool),
      LOCKSTEP_OF(MaxPool3d, max_pool),
      LOCKSTEP_LAYER(
          AvgPool1d,
          Call("AvgPool1d")
              .with("kernel_size", as<nn::AvgPool1dImpl>(m).options.kernel_size())
              .with("stride", as<nn::AvgPool1dImpl>(m).options.stride())
              .with("padding", as<nn::AvgPool1dImpl>(m).options.padding())
              .with("ceil_mode", as<nn::AvgPool1dImpl>(m).options.ceil_mode())
              .with("count_include_pad", as<nn::AvgPool1dImpl>(m).options.count_include_pad())
              .end()),
      LOCKSTEP_OF(AvgPool2d, average_pool),
      LOCKSTEP_OF(AvgPool3d, average_pool),
      LOCKSTEP_OF(AdaptiveAvgPool1d, adaptive_pool),
      LOCKSTEP_OF(AdaptiveAvgPool2d, adaptive_pool),
      LOCKSTEP_OF(AdaptiveAvgPool3d, adaptive_pool),
      LOCKSTEP_OF(AdaptiveMaxPool1d, adaptive_pool),
      LOCKSTEP_OF(AdaptiveMaxPool2d, adaptive_pool),
      LOCKSTEP_OF(AdaptiveMaxPool3d, adaptive_pool),
      LOCKSTEP_OF(Dropout, dropout),
      LOCKSTEP_OF(Dropout2d, dropout),
      LOCKSTEP_OF(Dropout3d, dropout),
      LOCKSTEP_PLAIN(Identity),
      LOCKSTEP_LAYER(Flatten, Call("Flatten")
                                  .with("start_dim", as<nn::FlattenImpl>(m).options.start_dim())
                                  .with("end_dim", as<nn::FlattenImpl>(m).options.end_dim())
                                  .end()),
      LOCKSTEP_LAYER(Unflatten,
                     Call("Unflatten")
                         .with("dim", as<nn::UnflattenImpl>(m).options.dim())
                         .with("unflattened_size", as<nn::UnflattenImpl>(m).options.sizes())
                         .end()),
  });
}

void add_activations(Table& table) {
  table.insert({
      LOCKSTEP_PLAIN(ReLU),
      LOCKSTEP_PLAIN(ReLU6),
      LOCKSTEP_PLAIN(SELU),
      LOCKSTEP_PLAIN(SiLU),
      LOCKSTEP_PLAIN(Mish),
      LOCKSTEP_PLAIN(Sigmoid),
      LOCKSTEP_PLAIN(LogSigmoid),
      LOCKSTEP_PLAIN(Tanh),
      LOCKSTEP_PLAIN(Tanhshrink),
      LOCKSTEP_PLAIN(Softsign),
      LOCKSTEP_OPTION(LeakyReLU, "negative_slope", negative_slope),
      LOCKSTEP_OPTION(ELU, "alpha", alpha),
      LOCKSTEP_OPTION(CELU, "alpha", alpha),
      LOCKSTEP_OPTION(GELU, "approximate", approximate),
      LOCKSTEP_OPTION(Softshrink, "lambd", lambda),
      LOCKSTEP_OPTION(Hardshrink, "lambd", lambda),
      LOCKSTEP_LAYER(Softplus, Call("Softplus")
                                   .with("beta", as<nn::SoftplusImpl>(m).options.beta())
                                   .with("threshold", as<nn::SoftplusImpl>(m).options.threshold())
                                   .end()),
      LOCKSTEP_LAYER(Hardtanh, Call("Hardtanh")
                                   .with("min_val", as<nn::HardtanhImpl>(m).options.min_val())
                                   .with("max_val", as<nn::HardtanhImpl>(m).options.max_val())
                                   .end()),
      LOCKSTEP_LAYER(Threshold, Call("Threshold")
                                    .with("threshold", as<nn::ThresholdImpl>(m).options.threshold())
                                    .with("value", as<nn::ThresholdImpl>(m).options.value())
                                    .end()),
      LOCKSTEP_OF(GLU, over_dim),
      LOCKSTEP_OF(Softmax, over_dim),
      LOCKSTEP_OF(LogSoftmax, over_dim),
      LOCKSTEP_OF(Softmin, over_dim),
  });
}

#undef LOCKSTEP_OPTION
#undef LOCKSTEP_PLAIN
#undef LOCKSTEP_OF
#undef LOCKSTEP_LAYER

}  // namespace

std::string python_string(const std::string& text) {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string quoted = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      quoted += std::string("\\") + c;
    } else if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) {
      quoted += std::string("\\x") + kDigits[c >> 4] + kDigits[c & 15];
    } else {
      quoted += c;
    }
  }
  return quoted + "\"";
}

std::optional<std::string> layer_text(const nn::Module& module) {
  static const Table table = [] {
    Table all;
    add_weighted(all);
    add_pooling(all);
    add_activations(all);
    return all;
  }();
  const auto found = table.find(typeid(module));
  if (found == table.end()) return std::nullopt;
  return found->second(module);
}

}  // namespace lockstep::inline v0::internal
