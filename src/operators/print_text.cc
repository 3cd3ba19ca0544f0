// The text that printTensor writes. Source: spec annotations.md, section 4.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <functional>

#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>

#include "abele/ops.h"
#include "base/error.h"

namespace abele::ops {
namespace {

enum class Style { kPlain, kFixed, kScientific };

template <class... Args>
std::string formatted(const char* format, Args... args) {
  char text[400];
  std::snprintf(text, sizeof text, format, args...);
  return text;
}

/// Formats the numbers of a tensor, all in the same way.
class Numbers {
 public:
  Numbers(const at::Tensor& tensor, const PrintFormat& format) : digits_(format.digits) {
    is_float_ = tensor.is_floating_point();
    is_bool_ = tensor.scalar_type() == at::kBool;
    if (is_float_) chooseStyle(tensor, format);
  }
  std::string operator()(double value) const {
    if (is_bool_) return value != 0 ? "true" : "false";
    if (!is_float_) return formatted("%.0f", value);
    if (!std::isfinite(value)) return std::isnan(value) ? "nan" : value > 0 ? "inf" : "-inf";
    if (style_ == Style::kFixed) return formatted("%.*f", static_cast<int>(fraction_), value);
    if (style_ == Style::kScientific) return formatted("%.*e", static_cast<int>(fraction_), value);
    return formatted("%g", value);
  }

 private:
  void chooseStyle(const at::Tensor& values, const PrintFormat& format) {
    double largest = 0, smallest = 0;
    for (int64_t i = 0; i < values.numel(); ++i) {
      const double size = std::abs(values.const_data_ptr<double>()[i]);
      if (!std::isfinite(size) || size == 0) continue;
      largest = std::max(largest, size);
      smallest = smallest == 0 ? size : std::min(smallest, size);
    }
    const auto digits = static_cast<int>(digits_ > 0 ? digits_ : 4);
    if (format.float_format == "none" || (format.float_format == "auto" && digits_ == 0)) return;
    const bool fits = largest < std::pow(10.0, digits) && (smallest == 0 || smallest >= std::pow(10.0, 1 - digits));
    const bool fixed = format.float_format == "fixed" || (format.float_format == "auto" && fits);
    const int whole = largest < 1 ? 1 : static_cast<int>(std::floor(std::log10(largest))) + 1;
    style_ = fixed ? Style::kFixed : Style::kScientific;
    fraction_ = fixed ? std::max(1, digits - whole) : std::max(1, digits - 1);
  }

  int64_t digits_;
  bool is_float_ = false;
  bool is_bool_ = false;
  Style style_ = Style::kPlain;
  int64_t fraction_ = 0;
};

class Writer {
 public:
  Writer(const at::Tensor& tensor, const PrintFormat& format)
      : format_(format),
        sizes_(tensor.sizes().vec()),
        // The element type of the original decides how its numbers look.
        values_(tensor.detach().to(at::kDouble).contiguous()),
        numbers_(tensor.is_floating_point() ? values_ : tensor, format),
        summarises_(format.summarise_threshold > 0 && tensor.numel() > format.summarise_threshold) {
    if (format.digits == 0) return;
    for (int64_t i = 0; i < values_.numel(); ++i) width_ = std::max(width_, text(i).size());
  }

  std::string all() {
    write(0, 0);
    return std::move(out_);
  }

 private:
  std::string text(int64_t i) const { return numbers_(values_.const_data_ptr<double>()[i]); }

  /// Calls each(index) for the elements of a dimension, and gap() where elements are left out.
  void forEach(int64_t dim, const std::function<void(int64_t)>& each, const std::function<void()>& gap) const {
    const int64_t size = sizes_[dim];
    const int64_t edge = format_.edge_items;
    const bool cuts = summarises_ && size > 2 * edge;
    for (int64_t i = 0; i < size; ++i) {
      if (cuts && i == edge) {
        gap();
        i = size - edge;
        if (i >= size) return;
      }
      each(i);
    }
  }

  void write(int64_t dim, int64_t index) {
    const auto rank = static_cast<int64_t>(sizes_.size());
    if (rank == 0) {
      out_ += text(0);
      return;
    }
    const std::string indent(dim, ' ');
    out_ += indent + format_.open_bracket;
    dim == rank - 1 ? writeRow(dim, index) : writeParts(dim, index);
    out_ += format_.close_bracket;
  }

  void writeParts(int64_t dim, int64_t index) {
    std::string between = format_.separator;
    while (!between.empty() && between.back() == ' ') between.pop_back();
    bool first = true;
    const auto next = [&] {
      out_ += first ? "\n" : between + "\n";
      first = false;
    };
    forEach(
        dim,
        [&](int64_t i) {
          next();
          write(dim + 1, index * sizes_[dim] + i);
        },
        [&] {
          next();
          out_ += std::string(dim + 1, ' ') + "...";
        });
    out_ += "\n" + std::string(dim, ' ');
  }

  void writeRow(int64_t dim, int64_t index) {
    const std::string margin(dim + format_.open_bracket.size(), ' ');
    size_t column = margin.size();
    bool first = true;
    const auto put = [&](const std::string& item) {
      const std::string piece = first ? item : format_.separator + item;
      const auto limit = static_cast<size_t>(format_.max_line_width);
      if (!first && limit > 0 && column + piece.size() > limit) {
        std::string ending = format_.separator;
        while (!ending.empty() && ending.back() == ' ') ending.pop_back();
        out_ += ending + "\n" + margin + item;
        column = margin.size() + item.size();
      } else {
        out_ += piece;
        column += piece.size();
      }
      first = false;
    };
    forEach(
        dim,
        [&](int64_t i) {
          const std::string number = text(index * sizes_[dim] + i);
          put(std::string(width_ > number.size() ? width_ - number.size() : 0, ' ') + number);
        },
        [&] { put("..."); });
  }

  const PrintFormat& format_;
  std::vector<int64_t> sizes_;
  at::Tensor values_;
  Numbers numbers_;
  bool summarises_;
  size_t width_ = 0;
  std::string out_;
};

}  // namespace

std::string printedText(const at::Tensor& tensor, const std::string& title, const PrintFormat& format) {
  return title + ": " + Writer(tensor, format).all() + "\n";
}

}  // namespace abele::ops
