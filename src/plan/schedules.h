// The kinds of schedules: schedules.def as data. A new one is a row there, its function, and an enumerator of
// abele::Schedule. Included by plan.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace abele::plan {

struct Schedule;
struct ScheduleRequest;

/// Drawn and compared in docs/schedules.md.
enum class ScheduleKind : uint8_t {
#define ABELE_SCHEDULE(kind, ...) kind,
#include "plan/schedules.def"
};

/// Bits of ScheduleRow::traits.
enum ScheduleTrait : uint8_t {
  kTrains = 1,
  kInfers = 2,
  kSplitsBackward = 4,  // weight gradients are actions of their own (pass split-weight-gradient)
  kLastStageWaits = 8,  // the last stage's backwards wait, so that it keeps several micro-batches
  kDealtRound = 16,     // stage s on device s % devices: a split gives each device two
};

struct ScheduleRow {
  ScheduleKind kind;
  const char* name;
  int traits;
  bool is_choice;  // users may ask for it
  Schedule (*make)(const ScheduleRequest&);
  /// Micro-batches of m in a group that stage s of p keeps at most.
  int64_t (*held)(int64_t m, int64_t p, int64_t s);
};
/// All rows, in the order of the enumerators.
const std::vector<ScheduleRow>& allSchedules();
const ScheduleRow& scheduleRow(ScheduleKind kind);

/// "1f1b"; the words that options, tools and print() use.
const char* scheduleName(ScheduleKind kind);
/// By name. False, and kind as it was, for a word that is no schedule.
bool parseSchedule(const std::string& name, ScheduleKind& kind);
/// Names of those with this trait, or of all; for messages and help.
std::vector<std::string> scheduleNames();
std::vector<std::string> scheduleNames(ScheduleTrait trait);
/// Names of those that users may ask for, and then `more`.
std::vector<std::string> scheduleChoices(const std::vector<std::string>& more = {});

inline bool hasTrait(ScheduleKind kind, ScheduleTrait trait) { return (scheduleRow(kind).traits & trait) != 0; }
inline bool splitsBackward(ScheduleKind kind) { return hasTrait(kind, kSplitsBackward); }
inline bool lastStageWaits(ScheduleKind kind) { return hasTrait(kind, kLastStageWaits); }
inline bool dealsRound(ScheduleKind kind) { return hasTrait(kind, kDealtRound); }

}  // namespace abele::plan
