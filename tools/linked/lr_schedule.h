// Learning rates by step: schedules of torch.optim.lr_scheduler, bit for bit, or a table in a file.
// Source: the formulas of torch.optim.lr_scheduler, which compute each rate from the one before.
#pragma once

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdint>
#include <fstream>
#include <iterator>
#include <limits>
#include <map>
#include <numbers>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "abele/error.h"

namespace abele::tools {

inline constexpr const char* kScheduleHelp =
    "learning rate by step (a call): a schedule of torch.optim.lr_scheduler with its arguments, "
    "StepLR:step_size=30,gamma=0.1, of ConstantLR, LinearLR, StepLR, ExponentialLR, CosineAnnealingLR; several follow "
    "one another as in SequentialLR, from the steps that they are given: LinearLR:total_iters=5 "
    "5:CosineAnnealingLR:T_max=95; or a file of lines STEP,RATE or STEP,RATE,RATE,... for the groups, each until the "
    "next line's step. Schedules start from --lr, or from the rates of the saved program";

class Schedule {
 public:
  using Rates = std::vector<double>;  // by parameter group

  /// texts: from the command line. base: initial rates of schedules. Throws E0901; E0712, E0801 for files.
  Schedule(const std::vector<std::string>& texts, Rates base) : base_(base), rates_(std::move(base)) {
    if (texts.size() == 1 && texts[0].find('=') == std::string::npos)
      readTable(texts[0]);
    else
      for (const std::string& text : texts) pieces_.push_back(pieceOf(text));
    if (!pieces_.empty()) advance(0);
  }

  /// The rates of a step, counted from 0. Requires: calls pass steps in ascending order.
  const Rates& of(int64_t step) {
    if (!table_.empty()) return std::prev(table_.upper_bound(step))->second;
    while (step_ < step) advance(++step_);
    return rates_;
  }

 private:
  using Numbers = std::map<std::string, double>;  // arguments by name
  struct Kind {
    const char* name;
    Numbers defaults;                                                           // NaN: must be given
    double (*next)(double rate, double base, const Numbers& of, int64_t step);  // step: starts at 1
    double (*first)(double base, const Numbers& of);
    double (*restart)(double base, const Numbers& of);  // the first rate after another schedule
  };
  struct Piece {
    int64_t begin = 0;
    const Kind* kind = nullptr;
    Numbers numbers;
  };

  [[noreturn]] static void refuse(const std::string& what, const std::string& found, const std::string& expected) {
    throw UserError(ErrorCode::E0901,
                    {.what = what, .found = found, .expected = expected, .remedy = "abele run --help"});
  }

  static const std::vector<Kind>& kinds() {
    constexpr double kNone = std::numeric_limits<double>::quiet_NaN();
    static const auto base = [](double rate, const Numbers&) { return rate; };
    static const std::vector<Kind> all{
        {"ConstantLR",
         {{"factor", 1.0 / 3}, {"total_iters", 5}},
         [](double rate, double, const Numbers& of, int64_t step) {
           return static_cast<double>(step) == of.at("total_iters") ? rate * (1.0 / of.at("factor")) : rate;
         },
         [](double rate, const Numbers& of) { return rate * of.at("factor"); },
         [](double rate, const Numbers& of) { return rate * of.at("factor"); }},
        {"LinearLR",
         {{"start_factor", 1.0 / 3}, {"end_factor", 1.0}, {"total_iters", 5}},
         [](double rate, double, const Numbers& of, int64_t step) {
           const double start = of.at("start_factor"), change = of.at("end_factor") - start;
           const double iters = of.at("total_iters"), now = static_cast<double>(step);
           return now > iters ? rate : rate * (1.0 + change / (iters * start + (now - 1) * change));
         },
         [](double rate, const Numbers& of) { return rate * of.at("start_factor"); },
         [](double rate, const Numbers& of) { return rate * of.at("start_factor"); }},
        {"StepLR",
         {{"step_size", kNone}, {"gamma", 0.1}},
         [](double rate, double, const Numbers& of, int64_t step) {
           return step % static_cast<int64_t>(of.at("step_size")) == 0 ? rate * of.at("gamma") : rate;
         },
         base,
         base},
        {"ExponentialLR",
         {{"gamma", kNone}},
         [](double rate, double, const Numbers& of, int64_t) { return rate * of.at("gamma"); },
         base,
         base},
        {"CosineAnnealingLR",
         {{"T_max", kNone}, {"eta_min", 0.0}},
         [](double rate, double from, const Numbers& of, int64_t step) {
           const double most = of.at("T_max"), least = of.at("eta_min"), now = static_cast<double>(step);
           constexpr double kPi = std::numbers::pi;
           if ((step - 1 - static_cast<int64_t>(most)) % (2 * static_cast<int64_t>(most)) == 0)
             return rate + (from - least) * (1 - std::cos(kPi / most)) / 2;
           return (1 + std::cos(kPi * now / most)) / (1 + std::cos(kPi * (now - 1) / most)) * (rate - least) + least;
         },
         base,
         [](double rate, const Numbers& of) { return of.at("eta_min") + (rate - of.at("eta_min")) * 2.0 / 2; }},
    };
    return all;
  }

  static std::optional<double> numberOf(std::string_view text) {
    double number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || !std::isfinite(number)) return {};
    return number;
  }
  static std::optional<int64_t> countOf(std::string_view text) {
    int64_t number = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
    if (error != std::errc() || end != text.data() + text.size() || number < 0) return {};
    return number;
  }
  static std::vector<std::string_view> split(std::string_view text, char at) {
    std::vector<std::string_view> parts;
    while (true) {
      const size_t end = text.find(at);
      parts.push_back(text.substr(0, end));
      if (end == text.npos) return parts;
      text.remove_prefix(end + 1);
    }
  }

  /// Reads "5:CosineAnnealingLR:T_max=95".
  Piece pieceOf(const std::string& text) const {
    std::vector<std::string_view> parts = split(text, ':');
    Piece piece;
    const std::optional<int64_t> begin = parts.size() == 3 ? countOf(parts[0]) : 0;
    if (parts.size() == 3) parts.erase(parts.begin());
    const auto known =
        std::ranges::find(kinds(), parts[0], [](const Kind& kind) { return std::string_view(kind.name); });
    if (!begin || parts.size() != 2 || known == kinds().end())
      refuse("a schedule of learning rates that is not known", text,
             "[STEP:]NAME:ARGUMENT=NUMBER,... with one of ConstantLR, LinearLR, StepLR, ExponentialLR, "
             "CosineAnnealingLR");
    piece.begin = *begin;
    if (pieces_.empty() ? piece.begin != 0 : piece.begin <= pieces_.back().begin)
      refuse("schedules of learning rates that do not follow one another", text,
             pieces_.empty() ? "the first one from step 0" : "a later step than the schedule's before it");
    piece.kind = &*known;
    piece.numbers = known->defaults;
    for (const std::string_view argument : split(parts[1], ',')) takeArgument(piece, argument, text);
    for (const auto& [name, number] : piece.numbers)
      if (std::isnan(number)) refuse(std::string(known->name) + " without " + name, text, name + "=NUMBER");
    return piece;
  }

  /// Reads "T_max=95". Numbers are as torch takes them, but numbers of steps must be 1 or more.
  static void takeArgument(Piece& piece, std::string_view argument, const std::string& text) {
    const size_t equals = argument.find('=');
    const std::string name(argument.substr(0, equals));
    const auto place = piece.numbers.find(name);
    std::string names;
    for (const auto& [each, number] : piece.kind->defaults) names += (names.empty() ? "" : ", ") + each;
    if (place == piece.numbers.end() || equals == argument.npos)
      refuse(std::string(piece.kind->name) + " has no argument " + name, text, names);
    const std::string_view given = argument.substr(equals + 1);
    const bool counts = name == "total_iters" || name == "step_size" || name == "T_max";
    const bool is_share = name == "factor" || name == "start_factor" || name == "end_factor";
    const std::optional<double> number = numberOf(given);
    const bool fits = number && (!counts || countOf(given).value_or(0) >= 1) &&
                      (!is_share || (*number <= 1 && (name == "end_factor" ? *number >= 0 : *number > 0)));
    if (!fits)
      refuse(std::string(piece.kind->name) + " with " + std::string(argument), text,
             counts     ? "a whole number of 1 or more"
             : is_share ? "a number above 0, up to 1"
                        : "a number");
    place->second = *number;
  }

  void advance(int64_t step) {
    const auto behind = std::ranges::upper_bound(pieces_, step, {}, &Piece::begin);
    const Piece& piece = *std::prev(behind);
    for (size_t group = 0; group < rates_.size(); ++group) {
      double& rate = rates_[group];
      const double base = base_[group];
      if (step != piece.begin)
        rate = piece.kind->next(rate, base, piece.numbers, step - piece.begin);
      else
        rate = (step == 0 ? piece.kind->first : piece.kind->restart)(base, piece.numbers);
    }
  }

  void readTable(const std::string& path) {
    std::ifstream in(path);
    const auto refuseLine = [&](int64_t line, const std::string& found, const std::string& expected) {
      throw UserError(ErrorCode::E0801, {.what = "a table of learning rates has a line of another form",
                                         .at = path + ":" + std::to_string(line),
                                         .found = found,
                                         .expected = expected});
    };
    int64_t number = 0;
    std::string line;
    while (std::getline(in, line)) {
      ++number;
      if (line.ends_with('\r')) line.pop_back();
      if (line.empty()) continue;
      std::vector<std::string_view> fields = split(line, ',');
      const std::optional<int64_t> step = countOf(fields[0]);
      if (!step && number == 1) continue;  // a header line
      Rates rates;
      for (size_t i = 1; i < fields.size(); ++i)
        if (const std::optional<double> rate = numberOf(fields[i])) rates.push_back(*rate);
      if (!step || rates.size() + 1 != fields.size() || (rates.size() != 1 && rates.size() != base_.size()))
        refuseLine(number, line,
                   "STEP,RATE" + (base_.size() > 1 ? " or STEP and " + std::to_string(base_.size()) + " rates" : ""));
      if (table_.empty() ? *step != 0 : *step <= table_.rbegin()->first)
        refuseLine(number, line, table_.empty() ? "the first line for step 0" : "a later step than the line before");
      if (rates.size() == 1) rates.assign(base_.size(), rates[0]);
      table_.emplace(*step, std::move(rates));
    }
    if (in.bad() || table_.empty())
      throw UserError(ErrorCode::E0712, {.what = "a table of learning rates cannot be read",
                                         .at = path,
                                         .expected = "a schedule, NAME:ARGUMENT=NUMBER, or a file of lines STEP,RATE",
                                         .remedy = "abele run --help"});
  }

  std::vector<Piece> pieces_;       // schedules from the command line; or
  std::map<int64_t, Rates> table_;  // rates of a file, by their first step
  Rates base_, rates_;
  int64_t step_ = 0;
};

}  // namespace abele::tools
