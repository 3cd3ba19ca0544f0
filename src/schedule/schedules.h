// The kinds of schedules: schedules.def as data. A new kind needs a row there, its function, and an enumerator of
// abele::Schedule. Included by plan.h.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace abele::schedule {

struct Schedule;
struct ScheduleRequest;

/// The kinds; docs/schedules.md draws and compares them.
enum class ScheduleKind : uint8_t {
#define ABELE_SCHEDULE(kind, ...) kind,
#include "schedule/schedules.def"
};

/// Bits of ScheduleRow::traits.
enum ScheduleTrait : uint8_t {
  kTrains = 1,
  kInfers = 2,
  kSplitsBackward = 4,  // weight gradients are separate actions (pass split-weight-gradient)
  kLastStageWaits = 8,  // the last stage's backwards wait, so that it keeps several micro-batches
  kDealtRound = 16,     // stage s runs on device s % devices; an automatic split gives each device two stages
};

struct ScheduleRow {
  ScheduleKind kind;
  const char* name;
  int traits;
  bool is_choice;  // users may choose it
  Schedule (*make)(const ScheduleRequest&);
  /// The largest number of micro-batches of a group of m that stage s of p keeps.
  int64_t (*held)(int64_t m, int64_t p, int64_t s);
};
/// All rows, in the order of the enumerators.
const std::vector<ScheduleRow>& allSchedules();
const ScheduleRow& scheduleRow(ScheduleKind kind);

/// The word that options, tools and print() use, "1f1b".
const char* scheduleName(ScheduleKind kind);
/// Finds a schedule by name. Returns false, and leaves `kind` as it was, for an unknown word.
bool parseSchedule(const std::string& name, ScheduleKind& kind);
/// The names of schedules that have one of these traits; for messages and help.
std::vector<std::string> scheduleNames(int traits = kTrains | kInfers);

inline bool hasTrait(ScheduleKind kind, ScheduleTrait trait) { return (scheduleRow(kind).traits & trait) != 0; }
inline bool splitsBackward(ScheduleKind kind) { return hasTrait(kind, kSplitsBackward); }
inline bool lastStageWaits(ScheduleKind kind) { return hasTrait(kind, kLastStageWaits); }
inline bool dealsRound(ScheduleKind kind) { return hasTrait(kind, kDealtRound); }

}  // namespace abele::schedule
