"""What a class does with the lessons: work on copies, rehearse, hand in. Knows no torch."""
