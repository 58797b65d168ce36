//! Permission bits as chmod(1) takes them: octal, or `u+rwX,go-w`.

use std::str::FromStr;

const SET_USER_ID: u32 = 0o4000;
const SET_GROUP_ID: u32 = 0o2000;
const STICKY: u32 = 0o1000;
const ALL: u32 = 0o7777;
const ANY_EXECUTE: u32 = 0o111;
/// Fewer octal digits leave the set-id bits of directories alone.
const OCTAL_DIGITS_FULL: usize = 5;

/// A change of permission bits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ModeChange {
    steps: Vec<Step>,
    /// Bits that are named; set-id bits of directories that are not stay.
    mentioned: u32,
}

/// The error of a text that is no mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a mode is octal, as 755, or symbolic, as u+rwX,go-w")]
pub struct ModeError;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    /// Bits that are changed; 0 for all that the umask leaves.
    affected: u32,
    operator: Operator,
    operand: Operand,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operator {
    Add,
    Remove,
    Set,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Operand {
    /// These bits, and where `executable`, execute permission if it is a directory or any class has
    /// that permission.
    Bits { bits: u32, executable: bool },
    /// What the class has whose bits are shifted by so much.
    Class(u32),
}

impl ModeChange {
    /// The bits after the change of what has `permissions`.
    #[must_use]
    pub fn apply(&self, permissions: u32, is_directory: bool, umask: u32) -> u32 {
        let kept = if is_directory {
            (SET_USER_ID | SET_GROUP_ID) & !self.mentioned
        } else {
            0
        };
        let mut mode = permissions & ALL;
        for step in &self.steps {
            let value = match step.operand {
                Operand::Bits { bits, executable } => {
                    let runs = executable && (is_directory || mode & ANY_EXECUTE != 0);
                    bits | if runs { ANY_EXECUTE } else { 0 }
                }
                Operand::Class(shift) => {
                    let class = (mode >> shift) & 0o7;
                    class << 6 | class << 3 | class
                }
            };
            let reach = if step.affected == 0 {
                !umask
            } else {
                step.affected
            };
            let value = value & reach & !kept & ALL;
            mode = match step.operator {
                Operator::Add => mode | value,
                Operator::Remove => mode & !value,
                Operator::Set => {
                    let untouched = if step.affected == 0 {
                        0
                    } else {
                        !step.affected
                    };
                    mode & (untouched | kept) | value
                }
            };
        }
        mode
    }
}

impl FromStr for ModeChange {
    type Err = ModeError;

    fn from_str(text: &str) -> Result<Self, ModeError> {
        if text.starts_with(|first: char| first.is_ascii_digit()) {
            return octal(text);
        }
        let mut change = Self {
            steps: Vec::new(),
            mentioned: 0,
        };
        for clause in text.split(',') {
            change.take_clause(clause)?;
        }
        Ok(change)
    }
}

fn octal(text: &str) -> Result<ModeChange, ModeError> {
    let bits = u32::from_str_radix(text, 8).map_err(|_| ModeError)?;
    if bits > ALL {
        return Err(ModeError);
    }
    let step = Step {
        affected: ALL,
        operator: Operator::Set,
        operand: Operand::Bits {
            bits,
            executable: false,
        },
    };
    let is_full = text.len() >= OCTAL_DIGITS_FULL;
    Ok(ModeChange {
        steps: vec![step],
        mentioned: if is_full { ALL } else { bits },
    })
}

impl ModeChange {
    fn take_clause(&mut self, clause: &str) -> Result<(), ModeError> {
        let is_operator = |character| matches!(character, '+' | '-' | '=');
        let start = clause.find(is_operator).ok_or(ModeError)?;
        let (classes, mut rest) = clause.split_at(start);
        let mut affected = 0;
        for class in classes.chars() {
            affected |= match class {
                'u' => SET_USER_ID | 0o700,
                'g' => SET_GROUP_ID | 0o070,
                'o' => STICKY | 0o007,
                'a' => ALL,
                _ => return Err(ModeError),
            };
        }
        while let Some(operator) = rest.chars().next() {
            let operator = match operator {
                '+' => Operator::Add,
                '-' => Operator::Remove,
                _ => Operator::Set,
            };
            let operand = &rest[1..];
            let end = operand.find(is_operator).unwrap_or(operand.len());
            let (operand, next) = operand.split_at(end);
            let operand = Operand::parse(operand)?;
            if let Operand::Bits { bits, .. } = operand {
                let reach = if affected == 0 { ALL } else { affected };
                self.mentioned |= bits & reach;
            }
            self.steps.push(Step {
                affected,
                operator,
                operand,
            });
            rest = next;
        }
        Ok(())
    }
}

impl Operand {
    fn parse(text: &str) -> Result<Self, ModeError> {
        match text {
            "u" => return Ok(Self::Class(6)),
            "g" => return Ok(Self::Class(3)),
            "o" => return Ok(Self::Class(0)),
            _ => {}
        }
        let (mut bits, mut executable) = (0, false);
        for letter in text.chars() {
            match letter {
                'r' => bits |= 0o444,
                'w' => bits |= 0o222,
                'x' => bits |= 0o111,
                'X' => executable = true,
                's' => bits |= SET_USER_ID | SET_GROUP_ID,
                't' => bits |= STICKY,
                _ => return Err(ModeError),
            }
        }
        Ok(Self::Bits { bits, executable })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_change_as_chmod_changes_them() {
        for (text, before, is_directory, after) in [
            ("755", 0o644, false, 0o755),
            ("4755", 0o644, false, 0o4755),
            ("0", 0o6777, false, 0),
            ("755", 0o2700, true, 0o2755),
            ("00755", 0o2700, true, 0o755),
            ("u+x", 0o644, false, 0o744),
            ("+x", 0o644, false, 0o755),
            ("+w", 0o444, false, 0o644),
            ("a+w", 0o444, false, 0o666),
            ("go-rwx,u=rw", 0o777, false, 0o600),
            ("u+rwX,go=u-w", 0o400, false, 0o644),
            ("u+rwX,go=u-w", 0o400, true, 0o755),
            ("+X", 0o644, false, 0o644),
            ("+X", 0o744, false, 0o755),
            ("u+s,g+s,+t", 0o755, false, 0o7755),
            ("a=", 0o7777, false, 0),
            ("a=", 0o6777, true, 0o6000),
            ("ug-s", 0o6777, true, 0o777),
            ("o=g", 0o750, false, 0o755),
            ("=r", 0o777, false, 0o444),
        ] {
            let change: ModeChange = text.parse().unwrap();
            let found = change.apply(before, is_directory, 0o022);
            assert_eq!(found, after, "{text} of {before:o}: {found:o}");
        }
    }

    #[test]
    fn what_is_no_mode_is_refused() {
        for text in [
            "", "8", "77777", "u", "rwx", "z+x", "u+q", "u+x,", "u+rwz", "u+ug",
        ] {
            assert_eq!(text.parse::<ModeChange>(), Err(ModeError), "{text}");
        }
    }
}
